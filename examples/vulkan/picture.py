"""Vulkan computes a picture; PyTorch reads it in another process, where it lies, and writes it into a PNG file.

    python examples/vulkan/picture.py [--out picture.png] [--width 960] [--height 540]

Needs the package `vulkan`, PyTorch and Pillow. On an NVIDIA GPU the picture lies in memory that Vulkan exports and CUDA
imports; on a CPU (Mesa's lavapipe) in our memory of the host, which Vulkan imports.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import vulkan as vk  # type: ignore[import-untyped]
from vulkan_program import Buffer, Program

import xpushare as xs
from xpushare.integrations import vulkan

SHADER = Path(__file__).with_name("picture.spv")
GROUP = 16


def draw(program: Program, buffer: Buffer, width: int, height: int) -> None:
    """Run the shader over the buffer, and wait for it."""
    device = program.device
    code = SHADER.read_bytes()
    shader = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    binding = vk.VkDescriptorSetLayoutBinding(
        binding=0,
        descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
        descriptorCount=1,
        stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
    )
    sets = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=[binding]), None)
    constants = vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=8)
    layout = vk.vkCreatePipelineLayout(
        device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets], pPushConstantRanges=[constants]), None
    )
    stage = vk.VkPipelineShaderStageCreateInfo(stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=shader, pName="main")
    wanted = vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)
    (pipeline,) = vk.vkCreateComputePipelines(device, vk.VK_NULL_HANDLE, 1, [wanted], None)
    size = vk.VkDescriptorPoolSize(type=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=1)
    pool = vk.vkCreateDescriptorPool(device, vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=[size]), None)
    (chosen,) = vk.vkAllocateDescriptorSets(
        device, vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[sets])
    )
    target = vk.VkDescriptorBufferInfo(buffer=buffer.raw, offset=0, range=buffer.nbytes)
    write = vk.VkWriteDescriptorSet(
        dstSet=chosen, dstBinding=0, descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, pBufferInfo=[target]
    )
    vk.vkUpdateDescriptorSets(device, 1, [write], 0, None)

    def dispatch(commands: Any) -> None:
        point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        vk.vkCmdBindPipeline(commands, point, pipeline)
        vk.vkCmdBindDescriptorSets(commands, point, layout, 0, 1, [chosen], 0, None)
        values = vk.ffi.new("uint32_t[2]", [width, height])
        vk.vkCmdPushConstants(commands, layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, 8, values)
        vk.vkCmdDispatch(commands, -(-width // GROUP), -(-height // GROUP), 1)

    program.run(dispatch)


def write_picture(handle: bytes, device: str, shape: tuple[int, int, int], out: str) -> None:
    """In another process: PyTorch reads what Vulkan has written."""
    import torch
    from PIL import Image

    array = xs.attach(handle, device=device)
    pixels = torch.from_dlpack(array)
    assert pixels.data_ptr() == array.memory.ptr  # nothing was copied
    pixels = pixels[: shape[0] * shape[1] * shape[2]].view(shape)
    print(f"torch reads {tuple(pixels.shape)} on {pixels.device}, mean {pixels.float().mean().item():.2f}")
    Image.fromarray(pixels[..., :3].cpu().numpy()).save(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="picture.png")
    parser.add_argument("--width", type=int, default=960)
    parser.add_argument("--height", type=int, default=540)
    given = parser.parse_args()
    shape = given.height, given.width, 4
    nbytes = given.width * given.height * 4

    program = Program()
    if program.is_cpu:
        device = "native_cpu:0"
        array = xs.empty(nbytes, "u1", isolated=True)
        buffer = Buffer(program, nbytes, pointer=array.memory.ptr)
        shared: Any = array
    else:
        where = vulkan.device(*program.uuids(), name=program.name)
        device = str(xs.Device(where.uuid))
        buffer = Buffer(program, nbytes)
        fd = buffer.fd()
        shared = vulkan.ExternalMemory(fd, buffer.allocation_nbytes, device=where, nbytes=nbytes)
        os.close(fd)
    draw(program, buffer, given.width, given.height)
    print(f"{program.name} drew {given.width} x {given.height} pixels")
    with xs.share(shared, stream=-1) as handle:
        context = multiprocessing.get_context("spawn")
        reader = context.Process(target=write_picture, args=(bytes(handle), device, shape, given.out))
        reader.start()
        reader.join()
    buffer.close()
    return reader.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
