"""Jobs for workers that may die, and results by a second channel: a job whose worker died is done by another one."""

import multiprocessing
import os
import signal

import numpy as np

import xpushare as xs

JOBS = 12


def results_writer() -> xs.Channel:
    return xs.Channel.create("results", nbytes=1 << 20, writers=4)


def worker() -> None:
    with xs.Channel.open("jobs", mode="one", start="oldest") as jobs, results_writer() as results:
        for job in jobs:
            number = job.meta
            if number == 5 and job.deliveries == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # the first to get this job dies of it
            results.send({"square": np.asarray(job.array["x"]) ** 2}, meta=number)


def main() -> None:
    with (
        xs.Channel.create("jobs", nbytes=1 << 20) as jobs,
        results_writer(),
        xs.Channel.open("results") as results,
    ):
        xs.Channel.open("jobs", mode="one").close()  # from now on jobs wait for workers, even before one is there
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=worker) for _ in range(3)]
        for each in workers:
            each.start()
        for number in range(JOBS):
            jobs.send({"x": np.arange(1000) + number}, meta=number)
        jobs.finish()
        done: set[int] = set()
        while len(done) < JOBS:
            with results.receive(60) as result:
                assert result.array["square"].shape == (1000,)
                done.add(result.meta)
        for each in workers:
            each.join()
    print(f"{len(done)} jobs are done; {sum(each.exitcode != 0 for each in workers)} worker died")


if __name__ == "__main__":
    main()
