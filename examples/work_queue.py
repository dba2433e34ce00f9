"""Jobs for workers that may die, and results by a second channel: a job whose worker died is done by another one."""

import multiprocessing
import os
import signal

import numpy as np

import xpushare as xs


def results_writer() -> xs.Channel:
    return xs.Channel.create("results", nbytes=1 << 20, writers=4)


def worker() -> None:
    with xs.Channel.open("jobs", mode="one", start="oldest") as jobs, results_writer() as results:
        for job in jobs:
            if job.meta == 5 and job.deliveries == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # the first to get this job dies of it
            results.send({"square": np.asarray(job.array["x"]) ** 2}, meta=job.meta)


def main() -> None:
    jobs = xs.Channel.create("jobs", nbytes=1 << 20, on_no_readers="block")  # jobs wait for workers
    with jobs, results_writer(), xs.Channel.open("results") as results:
        workers = [multiprocessing.get_context("spawn").Process(target=worker) for _ in range(3)]
        for each in workers:
            each.start()
        for number in range(12):
            jobs.send({"x": np.full(1000, number)}, meta=number)
        jobs.finish()
        done: dict[int, int] = {}
        while len(done) < 12:
            with results.receive(60) as result:
                done[result.meta] = int(np.asarray(result.array["square"])[0])
        for each in workers:
            each.join()
    assert done == {number: number**2 for number in range(12)}
    print(f"{len(done)} jobs are done; {sum(each.exitcode != 0 for each in workers)} worker died")


if __name__ == "__main__":
    main()
