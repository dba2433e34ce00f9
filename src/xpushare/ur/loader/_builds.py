"""What the loaders of Unified Runtime expect of an adapter. Made by tests/ur_loader/builds.py: not to be edited."""

from __future__ import annotations

from typing import Final

__all__ = ["BUILDS", "OF_THE_LOADER", "ORDER", "PROTOTYPES", "TABLES"]

# From the newest on; a build is told by the functions that its loader names.
BUILDS: Final = ("2026.2", "2026.1.2", "2026.0")

# What every loader exports that is in no table.
OF_THE_LOADER: Final = """
urDeviceGetSelected urLoaderConfigCreate urLoaderConfigEnableLayer urLoaderConfigGetInfo urLoaderConfigRelease
urLoaderConfigRetain urLoaderConfigSetCodeLocationCallback urLoaderConfigSetMockingEnabled urLoaderInit
urLoaderTearDown
"""

# The functions that fill the tables, in the order in which the tables stand in a handle's.
ORDER: Final[dict[str, str]] = {
    "2026.2": """
urGetAdapterProcAddrTable urGetPlatformProcAddrTable urGetContextProcAddrTable urGetEventProcAddrTable
urGetEventExpProcAddrTable urGetProgramProcAddrTable urGetProgramExpProcAddrTable urGetKernelProcAddrTable
urGetQueueProcAddrTable urGetQueueExpProcAddrTable urGetSamplerProcAddrTable urGetMemProcAddrTable
urGetPhysicalMemProcAddrTable urGetEnqueueProcAddrTable urGetEnqueueExpProcAddrTable urGetUSMProcAddrTable
urGetUSMExpProcAddrTable urGetBindlessImagesExpProcAddrTable urGetCommandBufferExpProcAddrTable
urGetGraphExpProcAddrTable urGetIPCExpProcAddrTable urGetMemoryExportExpProcAddrTable urGetUsmP2PExpProcAddrTable
urGetVirtualMemProcAddrTable urGetDeviceProcAddrTable urGetDeviceExpProcAddrTable
""",
    "2026.1.2": """
urGetAdapterProcAddrTable urGetPlatformProcAddrTable urGetContextProcAddrTable urGetEventProcAddrTable
urGetProgramProcAddrTable urGetProgramExpProcAddrTable urGetKernelProcAddrTable urGetQueueProcAddrTable
urGetQueueExpProcAddrTable urGetSamplerProcAddrTable urGetMemProcAddrTable urGetPhysicalMemProcAddrTable
urGetEnqueueProcAddrTable urGetEnqueueExpProcAddrTable urGetUSMProcAddrTable urGetUSMExpProcAddrTable
urGetBindlessImagesExpProcAddrTable urGetCommandBufferExpProcAddrTable urGetGraphExpProcAddrTable
urGetIPCExpProcAddrTable urGetMemoryExportExpProcAddrTable urGetUsmP2PExpProcAddrTable urGetVirtualMemProcAddrTable
urGetDeviceProcAddrTable urGetDeviceExpProcAddrTable
""",
    "2026.0": """
urGetAdapterProcAddrTable urGetPlatformProcAddrTable urGetContextProcAddrTable urGetEventProcAddrTable
urGetProgramProcAddrTable urGetProgramExpProcAddrTable urGetKernelProcAddrTable urGetQueueProcAddrTable
urGetQueueExpProcAddrTable urGetSamplerProcAddrTable urGetMemProcAddrTable urGetPhysicalMemProcAddrTable
urGetEnqueueProcAddrTable urGetEnqueueExpProcAddrTable urGetUSMProcAddrTable urGetUSMExpProcAddrTable
urGetBindlessImagesExpProcAddrTable urGetCommandBufferExpProcAddrTable urGetGraphExpProcAddrTable
urGetIPCExpProcAddrTable urGetMemoryExportExpProcAddrTable urGetUsmP2PExpProcAddrTable urGetVirtualMemProcAddrTable
urGetDeviceProcAddrTable urGetDeviceExpProcAddrTable
""",
}

# What is in a table, in order, and in which builds.
TABLES: Final[dict[str, dict[str, str]]] = {
    "urGetAdapterProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urAdapterGet urAdapterRelease urAdapterRetain urAdapterGetLastError urAdapterGetInfo urAdapterSetLoggerCallback
urAdapterSetLoggerCallbackLevel
""",
    },
    "urGetBindlessImagesExpProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urBindlessImagesUnsampledImageHandleDestroyExp urBindlessImagesSampledImageHandleDestroyExp
urBindlessImagesImageAllocateExp urBindlessImagesImageFreeExp urBindlessImagesUnsampledImageCreateExp
urBindlessImagesSampledImageCreateExp urBindlessImagesImageCopyExp urBindlessImagesImageGetInfoExp
urBindlessImagesGetImageMemoryHandleTypeSupportExp urBindlessImagesGetImageUnsampledHandleSupportExp
urBindlessImagesGetImageSampledHandleSupportExp urBindlessImagesMipmapGetLevelExp urBindlessImagesMipmapFreeExp
urBindlessImagesImportExternalMemoryExp urBindlessImagesMapExternalArrayExp urBindlessImagesMapExternalLinearMemoryExp
urBindlessImagesReleaseExternalMemoryExp urBindlessImagesFreeMappedLinearMemoryExp
urBindlessImagesSupportsImportingHandleTypeExp urBindlessImagesImportExternalSemaphoreExp
urBindlessImagesReleaseExternalSemaphoreExp urBindlessImagesWaitExternalSemaphoreExp
urBindlessImagesSignalExternalSemaphoreExp
""",
    },
    "urGetCommandBufferExpProcAddrTable": {
        "2026.2": """
urCommandBufferCreateExp urCommandBufferRetainExp urCommandBufferReleaseExp urCommandBufferFinalizeExp
urCommandBufferAppendKernelLaunchExp urCommandBufferAppendKernelLaunchWithArgsExp urCommandBufferAppendUSMMemcpyExp
urCommandBufferAppendUSMFillExp urCommandBufferAppendMemBufferCopyExp urCommandBufferAppendMemBufferWriteExp
urCommandBufferAppendMemBufferReadExp urCommandBufferAppendMemBufferCopyRectExp
urCommandBufferAppendMemBufferWriteRectExp urCommandBufferAppendMemBufferReadRectExp
urCommandBufferAppendMemBufferFillExp urCommandBufferAppendUSMPrefetchExp urCommandBufferAppendUSMAdviseExp
urCommandBufferAppendNativeCommandExp urCommandBufferUpdateKernelLaunchExp urCommandBufferUpdateSignalEventExp
urCommandBufferUpdateWaitEventsExp urCommandBufferGetInfoExp urCommandBufferGetNativeHandleExp
""",
        "2026.1.2 2026.0": """
urCommandBufferCreateExp urCommandBufferRetainExp urCommandBufferReleaseExp urCommandBufferFinalizeExp
urCommandBufferAppendKernelLaunchExp urCommandBufferAppendUSMMemcpyExp urCommandBufferAppendUSMFillExp
urCommandBufferAppendMemBufferCopyExp urCommandBufferAppendMemBufferWriteExp urCommandBufferAppendMemBufferReadExp
urCommandBufferAppendMemBufferCopyRectExp urCommandBufferAppendMemBufferWriteRectExp
urCommandBufferAppendMemBufferReadRectExp urCommandBufferAppendMemBufferFillExp urCommandBufferAppendUSMPrefetchExp
urCommandBufferAppendUSMAdviseExp urCommandBufferAppendNativeCommandExp urCommandBufferUpdateKernelLaunchExp
urCommandBufferUpdateSignalEventExp urCommandBufferUpdateWaitEventsExp urCommandBufferGetInfoExp
urCommandBufferGetNativeHandleExp
""",
    },
    "urGetContextProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urContextCreate urContextRetain urContextRelease urContextGetInfo urContextGetNativeHandle
urContextCreateWithNativeHandle urContextSetExtendedDeleter
""",
    },
    "urGetDeviceExpProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urDeviceWaitExp
""",
    },
    "urGetDeviceProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urDeviceGet urDeviceGetInfo urDeviceRetain urDeviceRelease urDevicePartition urDeviceSelectBinary
urDeviceGetNativeHandle urDeviceCreateWithNativeHandle urDeviceGetGlobalTimestamps
""",
    },
    "urGetEnqueueExpProcAddrTable": {
        "2026.2": """
urEnqueueKernelLaunchWithArgsExp urEnqueueUSMDeviceAllocExp urEnqueueUSMSharedAllocExp urEnqueueUSMHostAllocExp
urEnqueueUSMFreeExp urEnqueueTimestampRecordingExp urEnqueueCommandBufferExp urEnqueueHostTaskExp
urEnqueueNativeCommandExp urEnqueueGraphExp
""",
        "2026.1.2 2026.0": """
urEnqueueKernelLaunchWithArgsExp urEnqueueUSMDeviceAllocExp urEnqueueUSMSharedAllocExp urEnqueueUSMHostAllocExp
urEnqueueUSMFreeExp urEnqueueCommandBufferExp urEnqueueTimestampRecordingExp urEnqueueHostTaskExp
urEnqueueNativeCommandExp urEnqueueGraphExp
""",
    },
    "urGetEnqueueProcAddrTable": {
        "2026.2": """
urEnqueueEventsWait urEnqueueEventsWaitWithBarrier urEnqueueMemBufferRead urEnqueueMemBufferWrite
urEnqueueMemBufferReadRect urEnqueueMemBufferWriteRect urEnqueueMemBufferCopy urEnqueueMemBufferCopyRect
urEnqueueMemBufferFill urEnqueueMemImageRead urEnqueueMemImageWrite urEnqueueMemImageCopy urEnqueueMemBufferMap
urEnqueueMemUnmap urEnqueueUSMFill urEnqueueUSMMemcpy urEnqueueUSMPrefetch urEnqueueUSMAdvise urEnqueueUSMFill2D
urEnqueueUSMMemcpy2D urEnqueueDeviceGlobalVariableWrite urEnqueueDeviceGlobalVariableRead urEnqueueReadHostPipe
urEnqueueWriteHostPipe urEnqueueEventsWaitWithBarrierExt
""",
        "2026.1.2 2026.0": """
urEnqueueKernelLaunch urEnqueueEventsWait urEnqueueEventsWaitWithBarrier urEnqueueMemBufferRead
urEnqueueMemBufferWrite urEnqueueMemBufferReadRect urEnqueueMemBufferWriteRect urEnqueueMemBufferCopy
urEnqueueMemBufferCopyRect urEnqueueMemBufferFill urEnqueueMemImageRead urEnqueueMemImageWrite urEnqueueMemImageCopy
urEnqueueMemBufferMap urEnqueueMemUnmap urEnqueueUSMFill urEnqueueUSMMemcpy urEnqueueUSMPrefetch urEnqueueUSMAdvise
urEnqueueUSMFill2D urEnqueueUSMMemcpy2D urEnqueueDeviceGlobalVariableWrite urEnqueueDeviceGlobalVariableRead
urEnqueueReadHostPipe urEnqueueWriteHostPipe urEnqueueEventsWaitWithBarrierExt
""",
    },
    "urGetEventExpProcAddrTable": {
        "2026.2": """
urEventCreateExp
""",
    },
    "urGetEventProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urEventGetInfo urEventGetProfilingInfo urEventWait urEventRetain urEventRelease urEventGetNativeHandle
urEventCreateWithNativeHandle urEventSetCallback
""",
    },
    "urGetGraphExpProcAddrTable": {
        "2026.2 2026.1.2": """
urGraphCreateExp urGraphInstantiateGraphExp urGraphDestroyExp urGraphExecutableGraphDestroyExp urGraphIsEmptyExp
urGraphGetIdExp urGraphSetDestructionCallbackExp urGraphDumpContentsExp urGraphGetNativeHandleExp
urGraphExecutableGraphGetNativeHandleExp
""",
        "2026.0": """
urGraphCreateExp urGraphInstantiateGraphExp urGraphDestroyExp urGraphExecutableGraphDestroyExp urGraphIsEmptyExp
urGraphDumpContentsExp
""",
    },
    "urGetIPCExpProcAddrTable": {
        "2026.2": """
urIPCGetMemHandleExp urIPCPutMemHandleExp urIPCOpenMemHandleExp urIPCCloseMemHandleExp urIPCGetPhysMemHandleExp
urIPCPutPhysMemHandleExp urIPCOpenPhysMemHandleExp urIPCClosePhysMemHandleExp urIPCGetEventHandleExp
urIPCPutEventHandleExp urIPCOpenEventHandleExp
""",
        "2026.1.2 2026.0": """
urIPCGetMemHandleExp urIPCPutMemHandleExp urIPCOpenMemHandleExp urIPCCloseMemHandleExp
""",
    },
    "urGetKernelProcAddrTable": {
        "2026.2": """
urKernelCreate urKernelGetInfo urKernelGetGroupInfo urKernelGetSubGroupInfo urKernelRetain urKernelRelease
urKernelGetNativeHandle urKernelCreateWithNativeHandle urKernelGetSuggestedLocalWorkSize
urKernelGetSuggestedLocalWorkSizeWithArgs urKernelSetExecInfo urKernelSetSpecializationConstants
urKernelSuggestMaxCooperativeGroupCount
""",
        "2026.1.2 2026.0": """
urKernelCreate urKernelGetInfo urKernelGetGroupInfo urKernelGetSubGroupInfo urKernelRetain urKernelRelease
urKernelGetNativeHandle urKernelCreateWithNativeHandle urKernelGetSuggestedLocalWorkSize urKernelSetArgValue
urKernelSetArgLocal urKernelSetArgPointer urKernelSetExecInfo urKernelSetArgSampler urKernelSetArgMemObj
urKernelSetSpecializationConstants urKernelSuggestMaxCooperativeGroupCount
""",
    },
    "urGetMemProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urMemImageCreate urMemBufferCreate urMemRetain urMemRelease urMemBufferPartition urMemGetNativeHandle
urMemBufferCreateWithNativeHandle urMemImageCreateWithNativeHandle urMemGetInfo urMemImageGetInfo
""",
    },
    "urGetMemoryExportExpProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urMemoryExportAllocExportableMemoryExp urMemoryExportFreeExportableMemoryExp urMemoryExportExportMemoryHandleExp
""",
    },
    "urGetPhysicalMemProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urPhysicalMemCreate urPhysicalMemRetain urPhysicalMemRelease urPhysicalMemGetInfo
""",
    },
    "urGetPlatformProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urPlatformGet urPlatformGetInfo urPlatformGetNativeHandle urPlatformCreateWithNativeHandle urPlatformGetApiVersion
urPlatformGetBackendOption
""",
    },
    "urGetProgramExpProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urProgramDynamicLinkExp urProgramBuildExp urProgramCompileExp urProgramLinkExp
""",
    },
    "urGetProgramProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urProgramCreateWithIL urProgramCreateWithBinary urProgramBuild urProgramCompile urProgramLink urProgramRetain
urProgramRelease urProgramGetFunctionPointer urProgramGetGlobalVariablePointer urProgramGetInfo urProgramGetBuildInfo
urProgramSetSpecializationConstants urProgramGetNativeHandle urProgramCreateWithNativeHandle
""",
    },
    "urGetQueueExpProcAddrTable": {
        "2026.2 2026.1.2": """
urQueueBeginGraphCaptureExp urQueueBeginCaptureIntoGraphExp urQueueEndGraphCaptureExp urQueueIsGraphCaptureEnabledExp
urQueueGetGraphExp
""",
        "2026.0": """
urQueueBeginGraphCaptureExp urQueueBeginCaptureIntoGraphExp urQueueEndGraphCaptureExp urQueueIsGraphCaptureEnabledExp
""",
    },
    "urGetQueueProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urQueueGetInfo urQueueCreate urQueueRetain urQueueRelease urQueueGetNativeHandle urQueueCreateWithNativeHandle
urQueueFinish urQueueFlush
""",
    },
    "urGetSamplerProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urSamplerCreate urSamplerRetain urSamplerRelease urSamplerGetInfo urSamplerGetNativeHandle
urSamplerCreateWithNativeHandle
""",
    },
    "urGetUSMExpProcAddrTable": {
        "2026.2": """
urUSMPoolCreateExp urUSMPoolDestroyExp urUSMPoolGetDefaultDevicePoolExp urUSMPoolGetInfoExp urUSMPoolSetInfoExp
urUSMPoolSetDevicePoolExp urUSMPoolGetDevicePoolExp urUSMPoolTrimToExp urUSMPitchedAllocExp urUSMContextMemcpyExp
urUSMHostAllocUnregisterExp urUSMHostAllocRegisterExp urUSMImportExp urUSMReleaseExp
""",
        "2026.1.2 2026.0": """
urUSMPoolCreateExp urUSMPoolDestroyExp urUSMPoolGetDefaultDevicePoolExp urUSMPoolGetInfoExp urUSMPoolSetInfoExp
urUSMPoolSetDevicePoolExp urUSMPoolGetDevicePoolExp urUSMPoolTrimToExp urUSMPitchedAllocExp urUSMContextMemcpyExp
urUSMImportExp urUSMReleaseExp
""",
    },
    "urGetUSMProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urUSMHostAlloc urUSMDeviceAlloc urUSMSharedAlloc urUSMFree urUSMGetMemAllocInfo urUSMPoolCreate urUSMPoolRetain
urUSMPoolRelease urUSMPoolGetInfo
""",
    },
    "urGetUsmP2PExpProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urUsmP2PEnablePeerAccessExp urUsmP2PDisablePeerAccessExp urUsmP2PPeerAccessGetInfoExp
""",
    },
    "urGetVirtualMemProcAddrTable": {
        "2026.2 2026.1.2 2026.0": """
urVirtualMemGranularityGetInfo urVirtualMemReserve urVirtualMemFree urVirtualMemMap urVirtualMemUnmap
urVirtualMemSetAccess urVirtualMemGetInfo
""",
    },
}

# The parameters of each function, and how each is passed; `?`: it may be null.
PROTOTYPES: Final = """
urAdapterGet NumEntries:u32 phAdapters:ptr? pNumAdapters:ptr?;
urAdapterGetInfo hAdapter:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urAdapterGetLastError hAdapter:handle ppMessage:ptr pError:ptr;
urAdapterRelease hAdapter:handle;
urAdapterRetain hAdapter:handle;
urAdapterSetLoggerCallback hAdapter:handle pfnLoggerCallback:ptr pUserData:ptr? level:u32;
urAdapterSetLoggerCallbackLevel hAdapter:handle level:u32;
urBindlessImagesFreeMappedLinearMemoryExp hContext:handle hDevice:handle pMem:ptr;
urBindlessImagesGetImageMemoryHandleTypeSupportExp hContext:handle hDevice:handle pImageDesc:ptr pImageFormat:ptr
imageMemHandleType:u32 pSupportedRet:ptr;
urBindlessImagesGetImageSampledHandleSupportExp hContext:handle hDevice:handle pImageDesc:ptr pImageFormat:ptr
imageMemHandleType:u32 pSupportedRet:ptr;
urBindlessImagesGetImageUnsampledHandleSupportExp hContext:handle hDevice:handle pImageDesc:ptr pImageFormat:ptr
imageMemHandleType:u32 pSupportedRet:ptr;
urBindlessImagesImageAllocateExp hContext:handle hDevice:handle pImageFormat:ptr pImageDesc:ptr phImageMem:ptr;
urBindlessImagesImageCopyExp hQueue:handle pSrc:ptr pDst:ptr pSrcImageDesc:ptr pDstImageDesc:ptr pSrcImageFormat:ptr
pDstImageFormat:ptr pCopyRegion:ptr imageCopyFlags:u32 imageCopyInputTypes:u32 numEventsInWaitList:u32
phEventWaitList:ptr? phEvent:ptr?;
urBindlessImagesImageFreeExp hContext:handle hDevice:handle hImageMem:u64;
urBindlessImagesImageGetInfoExp hContext:handle hImageMem:u64 propName:u32 pPropValue:ptr? pPropSizeRet:ptr?;
urBindlessImagesImportExternalMemoryExp hContext:handle hDevice:handle size:u64 memHandleType:u32 pExternalMemDesc:ptr
phExternalMem:ptr;
urBindlessImagesImportExternalSemaphoreExp hContext:handle hDevice:handle semHandleType:u32 pExternalSemaphoreDesc:ptr
phExternalSemaphore:ptr;
urBindlessImagesMapExternalArrayExp hContext:handle hDevice:handle pImageFormat:ptr pImageDesc:ptr hExternalMem:handle
phImageMem:ptr;
urBindlessImagesMapExternalLinearMemoryExp hContext:handle hDevice:handle offset:u64 size:u64 hExternalMem:handle
ppRetMem:ptr;
urBindlessImagesMipmapFreeExp hContext:handle hDevice:handle hMem:u64;
urBindlessImagesMipmapGetLevelExp hContext:handle hDevice:handle hImageMem:u64 mipmapLevel:u32 phImageMem:ptr;
urBindlessImagesReleaseExternalMemoryExp hContext:handle hDevice:handle hExternalMem:handle;
urBindlessImagesReleaseExternalSemaphoreExp hContext:handle hDevice:handle hExternalSemaphore:handle;
urBindlessImagesSampledImageCreateExp hContext:handle hDevice:handle hImageMem:u64 pImageFormat:ptr pImageDesc:ptr
pSamplerDesc:ptr phImage:ptr;
urBindlessImagesSampledImageHandleDestroyExp hContext:handle hDevice:handle hImage:handle;
urBindlessImagesSignalExternalSemaphoreExp hQueue:handle hSemaphore:handle hasSignalValue:bool signalValue:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urBindlessImagesSupportsImportingHandleTypeExp hDevice:handle memHandleType:u32 pSupportedRet:ptr;
urBindlessImagesUnsampledImageCreateExp hContext:handle hDevice:handle hImageMem:u64 pImageFormat:ptr pImageDesc:ptr
phImage:ptr;
urBindlessImagesUnsampledImageHandleDestroyExp hContext:handle hDevice:handle hImage:handle;
urBindlessImagesWaitExternalSemaphoreExp hQueue:handle hSemaphore:handle hasWaitValue:bool waitValue:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urCommandBufferAppendKernelLaunchExp hCommandBuffer:handle hKernel:handle workDim:u32 pGlobalWorkOffset:ptr?
pGlobalWorkSize:ptr pLocalWorkSize:ptr? numKernelAlternatives:u32 phKernelAlternatives:ptr?
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendKernelLaunchWithArgsExp hCommandBuffer:handle hKernel:handle workDim:u32 pGlobalWorkOffset:ptr?
pGlobalWorkSize:ptr pLocalWorkSize:ptr? numArgs:u32 pArgs:ptr? numKernelAlternatives:u32 phKernelAlternatives:ptr?
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferCopyExp hCommandBuffer:handle hSrcMem:handle hDstMem:handle srcOffset:u64 dstOffset:u64
size:u64 numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr?
pSyncPoint:ptr? phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferCopyRectExp hCommandBuffer:handle hSrcMem:handle hDstMem:handle srcOrigin:u64x3
dstOrigin:u64x3 region:u64x3 srcRowPitch:u64 srcSlicePitch:u64 dstRowPitch:u64 dstSlicePitch:u64
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferFillExp hCommandBuffer:handle hBuffer:handle pPattern:ptr patternSize:u64 offset:u64
size:u64 numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr?
pSyncPoint:ptr? phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferReadExp hCommandBuffer:handle hBuffer:handle offset:u64 size:u64 pDst:ptr
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferReadRectExp hCommandBuffer:handle hBuffer:handle bufferOffset:u64x3 hostOffset:u64x3
region:u64x3 bufferRowPitch:u64 bufferSlicePitch:u64 hostRowPitch:u64 hostSlicePitch:u64 pDst:ptr
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferWriteExp hCommandBuffer:handle hBuffer:handle offset:u64 size:u64 pSrc:ptr
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendMemBufferWriteRectExp hCommandBuffer:handle hBuffer:handle bufferOffset:u64x3 hostOffset:u64x3
region:u64x3 bufferRowPitch:u64 bufferSlicePitch:u64 hostRowPitch:u64 hostSlicePitch:u64 pSrc:ptr
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendNativeCommandExp hCommandBuffer:handle pfnNativeCommand:ptr pData:ptr?
hChildCommandBuffer:handle? numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? pSyncPoint:ptr?;
urCommandBufferAppendUSMAdviseExp hCommandBuffer:handle pMemory:ptr size:u64 advice:u32 numSyncPointsInWaitList:u32
pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr? phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendUSMFillExp hCommandBuffer:handle pMemory:ptr pPattern:ptr patternSize:u64 size:u64
numSyncPointsInWaitList:u32 pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr?
phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendUSMMemcpyExp hCommandBuffer:handle pDst:ptr pSrc:ptr size:u64 numSyncPointsInWaitList:u32
pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr? phEvent:ptr? phCommand:ptr?;
urCommandBufferAppendUSMPrefetchExp hCommandBuffer:handle pMemory:ptr size:u64 flags:u32 numSyncPointsInWaitList:u32
pSyncPointWaitList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? pSyncPoint:ptr? phEvent:ptr? phCommand:ptr?;
urCommandBufferCreateExp hContext:handle hDevice:handle pCommandBufferDesc:ptr phCommandBuffer:ptr;
urCommandBufferFinalizeExp hCommandBuffer:handle;
urCommandBufferGetInfoExp hCommandBuffer:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urCommandBufferGetNativeHandleExp hCommandBuffer:handle phNativeCommandBuffer:ptr;
urCommandBufferReleaseExp hCommandBuffer:handle;
urCommandBufferRetainExp hCommandBuffer:handle;
urCommandBufferUpdateKernelLaunchExp hCommandBuffer:handle numKernelUpdates:u32
ur_exp_command_buffer_update_kernel_launch_desc_t:u32 pUpdateKernelLaunch:ptr;
urCommandBufferUpdateSignalEventExp hCommand:handle phSignalEvent:ptr;
urCommandBufferUpdateWaitEventsExp hCommand:handle numEventsInWaitList:u32 phEventWaitList:ptr?;
urContextCreate DeviceCount:u32 phDevices:ptr pProperties:ptr? phContext:ptr;
urContextCreateWithNativeHandle hNativeContext:u64 hAdapter:handle numDevices:u32 phDevices:ptr? pProperties:ptr?
phContext:ptr;
urContextGetInfo hContext:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urContextGetNativeHandle hContext:handle phNativeContext:ptr;
urContextRelease hContext:handle;
urContextRetain hContext:handle;
urContextSetExtendedDeleter hContext:handle pfnDeleter:ptr pUserData:ptr?;
urDeviceCreateWithNativeHandle hNativeDevice:u64 hAdapter:handle pProperties:ptr? phDevice:ptr;
urDeviceGet hPlatform:handle DeviceType:u32 NumEntries:u32 phDevices:ptr? pNumDevices:ptr?;
urDeviceGetGlobalTimestamps hDevice:handle pDeviceTimestamp:ptr? pHostTimestamp:ptr?;
urDeviceGetInfo hDevice:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urDeviceGetNativeHandle hDevice:handle phNativeDevice:ptr;
urDevicePartition hDevice:handle pProperties:ptr NumDevices:u32 phSubDevices:ptr? pNumDevicesRet:ptr?;
urDeviceRelease hDevice:handle;
urDeviceRetain hDevice:handle;
urDeviceSelectBinary hDevice:handle pBinaries:ptr NumBinaries:u32 pSelectedBinary:ptr;
urDeviceWaitExp hDevice:handle;
urEnqueueCommandBufferExp hQueue:handle hCommandBuffer:handle numEventsInWaitList:u32 phEventWaitList:ptr?
phEvent:ptr?;
urEnqueueDeviceGlobalVariableRead hQueue:handle hProgram:handle name:ptr blockingRead:bool count:u64 offset:u64
pDst:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueDeviceGlobalVariableWrite hQueue:handle hProgram:handle name:ptr blockingWrite:bool count:u64 offset:u64
pSrc:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueEventsWait hQueue:handle numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueEventsWaitWithBarrier hQueue:handle numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueEventsWaitWithBarrierExt hQueue:handle pProperties:ptr? numEventsInWaitList:u32 phEventWaitList:ptr?
phEvent:ptr?;
urEnqueueGraphExp hQueue:handle hGraph:handle numEventsInWaitList:u32? phEventWaitList:ptr? phEvent:ptr?;
urEnqueueHostTaskExp hQueue:handle pfnHostTask:ptr data:ptr? pProperties:ptr? numEventsInWaitList:u32
phEventWaitList:ptr? phEvent:ptr?;
urEnqueueKernelLaunch hQueue:handle hKernel:handle workDim:u32 pGlobalWorkOffset:ptr? pGlobalWorkSize:ptr
pLocalWorkSize:ptr? launchPropList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueKernelLaunchWithArgsExp hQueue:handle hKernel:handle workDim:u32 pGlobalWorkOffset:ptr? pGlobalWorkSize:ptr
pLocalWorkSize:ptr? numArgs:u32 pArgs:ptr? launchPropList:ptr? numEventsInWaitList:u32 phEventWaitList:ptr?
phEvent:ptr?;
urEnqueueMemBufferCopy hQueue:handle hBufferSrc:handle hBufferDst:handle srcOffset:u64 dstOffset:u64 size:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferCopyRect hQueue:handle hBufferSrc:handle hBufferDst:handle srcOrigin:u64x3 dstOrigin:u64x3
region:u64x3 srcRowPitch:u64 srcSlicePitch:u64 dstRowPitch:u64 dstSlicePitch:u64 numEventsInWaitList:u32
phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferFill hQueue:handle hBuffer:handle pPattern:ptr patternSize:u64 offset:u64 size:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferMap hQueue:handle hBuffer:handle blockingMap:bool mapFlags:u32 offset:u64 size:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr? ppRetMap:ptr;
urEnqueueMemBufferRead hQueue:handle hBuffer:handle blockingRead:bool offset:u64 size:u64 pDst:ptr
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferReadRect hQueue:handle hBuffer:handle blockingRead:bool bufferOrigin:u64x3 hostOrigin:u64x3
region:u64x3 bufferRowPitch:u64 bufferSlicePitch:u64 hostRowPitch:u64 hostSlicePitch:u64 pDst:ptr
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferWrite hQueue:handle hBuffer:handle blockingWrite:bool offset:u64 size:u64 pSrc:ptr
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemBufferWriteRect hQueue:handle hBuffer:handle blockingWrite:bool bufferOrigin:u64x3 hostOrigin:u64x3
region:u64x3 bufferRowPitch:u64 bufferSlicePitch:u64 hostRowPitch:u64 hostSlicePitch:u64 pSrc:ptr
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemImageCopy hQueue:handle hImageSrc:handle hImageDst:handle srcOrigin:u64x3 dstOrigin:u64x3 region:u64x3
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemImageRead hQueue:handle hImage:handle blockingRead:bool origin:u64x3 region:u64x3 rowPitch:u64
slicePitch:u64 pDst:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemImageWrite hQueue:handle hImage:handle blockingWrite:bool origin:u64x3 region:u64x3 rowPitch:u64
slicePitch:u64 pSrc:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueMemUnmap hQueue:handle hMem:handle pMappedPtr:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueNativeCommandExp hQueue:handle pfnNativeEnqueue:ptr data:ptr? numMemsInMemList:u32 phMemList:ptr?
pProperties:ptr? numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueReadHostPipe hQueue:handle hProgram:handle pipe_symbol:ptr blocking:bool pDst:ptr size:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueTimestampRecordingExp hQueue:handle blocking:bool numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr;
urEnqueueUSMAdvise hQueue:handle pMem:ptr size:u64 advice:u32 phEvent:ptr?;
urEnqueueUSMDeviceAllocExp hQueue:handle pPool:handle? size:u64 pProperties:ptr? numEventsInWaitList:u32
phEventWaitList:ptr? ppMem:ptr phEvent:ptr?;
urEnqueueUSMFill hQueue:handle pMem:ptr patternSize:u64 pPattern:ptr size:u64 numEventsInWaitList:u32
phEventWaitList:ptr? phEvent:ptr?;
urEnqueueUSMFill2D hQueue:handle pMem:ptr pitch:u64 patternSize:u64 pPattern:ptr width:u64 height:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueUSMFreeExp hQueue:handle pPool:handle? pMem:ptr numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueUSMHostAllocExp hQueue:handle pPool:handle? size:u64 pProperties:ptr? numEventsInWaitList:u32
phEventWaitList:ptr? ppMem:ptr phEvent:ptr?;
urEnqueueUSMMemcpy hQueue:handle blocking:bool pDst:ptr pSrc:ptr size:u64 numEventsInWaitList:u32 phEventWaitList:ptr?
phEvent:ptr?;
urEnqueueUSMMemcpy2D hQueue:handle blocking:bool pDst:ptr dstPitch:u64 pSrc:ptr srcPitch:u64 width:u64 height:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEnqueueUSMPrefetch hQueue:handle pMem:ptr size:u64 flags:u32 numEventsInWaitList:u32 phEventWaitList:ptr?
phEvent:ptr?;
urEnqueueUSMSharedAllocExp hQueue:handle pPool:handle? size:u64 pProperties:ptr? numEventsInWaitList:u32
phEventWaitList:ptr? ppMem:ptr phEvent:ptr?;
urEnqueueWriteHostPipe hQueue:handle hProgram:handle pipe_symbol:ptr blocking:bool pSrc:ptr size:u64
numEventsInWaitList:u32 phEventWaitList:ptr? phEvent:ptr?;
urEventCreateExp hContext:handle hDevice:handle pEventDesc:ptr phEvent:ptr;
urEventCreateWithNativeHandle hNativeEvent:u64 hContext:handle pProperties:ptr? phEvent:ptr;
urEventGetInfo hEvent:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urEventGetNativeHandle hEvent:handle phNativeEvent:ptr;
urEventGetProfilingInfo hEvent:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urEventRelease hEvent:handle;
urEventRetain hEvent:handle;
urEventSetCallback hEvent:handle execStatus:u32 pfnNotify:ptr pUserData:ptr?;
urEventWait numEvents:u32 phEventWaitList:ptr;
urGraphCreateExp hContext:handle phGraph:ptr;
urGraphDestroyExp hGraph:handle;
urGraphDumpContentsExp hGraph:handle filePath:ptr;
urGraphExecutableGraphDestroyExp hExecutableGraph:handle;
urGraphExecutableGraphGetNativeHandleExp hExecutableGraph:handle phNativeExecutableGraph:ptr;
urGraphGetIdExp hGraph:handle pGraphId:ptr;
urGraphGetNativeHandleExp hGraph:handle phNativeGraph:ptr;
urGraphInstantiateGraphExp hGraph:handle phExecGraph:ptr;
urGraphIsEmptyExp hGraph:handle pResult:ptr;
urGraphSetDestructionCallbackExp hGraph:handle pfnCallback:ptr pUserData:ptr?;
urIPCCloseMemHandleExp hContext:handle pMem:ptr;
urIPCClosePhysMemHandleExp hContext:handle hPhysMem:handle;
urIPCGetEventHandleExp hEvent:handle ppIPCEventHandleData:ptr pIPCEventHandleDataSizeRet:ptr;
urIPCGetMemHandleExp hContext:handle pMem:ptr ppIPCMemHandleData:ptr? pIPCMemHandleDataSizeRet:ptr?;
urIPCGetPhysMemHandleExp hContext:handle hPhysMem:handle ppIPCPhysMemHandleData:ptr pIPCPhysMemHandleDataSizeRet:ptr;
urIPCOpenEventHandleExp hContext:handle pIPCEventHandleData:ptr ipcEventHandleDataSize:u64 phEvent:ptr;
urIPCOpenMemHandleExp hContext:handle hDevice:handle pIPCMemHandleData:ptr ipcMemHandleDataSize:u64 ppMem:ptr;
urIPCOpenPhysMemHandleExp hContext:handle hDevice:handle pIPCPhysMemHandleData:ptr ipcPhysMemHandleDataSize:u64
phPhysMem:ptr;
urIPCPutEventHandleExp hContext:handle pIPCEventHandleData:ptr;
urIPCPutMemHandleExp hContext:handle pIPCMemHandleData:ptr;
urIPCPutPhysMemHandleExp hContext:handle pIPCPhysMemHandleData:ptr;
urKernelCreate hProgram:handle pKernelName:ptr phKernel:ptr;
urKernelCreateWithNativeHandle hNativeKernel:u64 hContext:handle hProgram:handle? pProperties:ptr? phKernel:ptr;
urKernelGetGroupInfo hKernel:handle hDevice:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urKernelGetInfo hKernel:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urKernelGetNativeHandle hKernel:handle phNativeKernel:ptr;
urKernelGetSubGroupInfo hKernel:handle hDevice:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urKernelGetSuggestedLocalWorkSize hKernel:handle hQueue:handle numWorkDim:u32 pGlobalWorkOffset:ptr
pGlobalWorkSize:ptr pSuggestedLocalWorkSize:ptr;
urKernelGetSuggestedLocalWorkSizeWithArgs hKernel:handle hQueue:handle numWorkDim:u32 pGlobalWorkOffset:ptr
pGlobalWorkSize:ptr numArgs:u32 pArgs:ptr? pSuggestedLocalWorkSize:ptr;
urKernelRelease hKernel:handle;
urKernelRetain hKernel:handle;
urKernelSetArgLocal hKernel:handle argIndex:u32 argSize:u64 pProperties:ptr?;
urKernelSetArgMemObj hKernel:handle argIndex:u32 pProperties:ptr? hArgValue:handle?;
urKernelSetArgPointer hKernel:handle argIndex:u32 pProperties:ptr? pArgValue:ptr?;
urKernelSetArgSampler hKernel:handle argIndex:u32 pProperties:ptr? hArgValue:handle;
urKernelSetArgValue hKernel:handle argIndex:u32 argSize:u64 pProperties:ptr? pArgValue:ptr;
urKernelSetExecInfo hKernel:handle propName:u32 propSize:u64 pProperties:ptr? pPropValue:ptr;
urKernelSetSpecializationConstants hKernel:handle count:u32 pSpecConstants:ptr;
urKernelSuggestMaxCooperativeGroupCount hKernel:handle hDevice:handle workDim:u32 pLocalWorkSize:ptr
dynamicSharedMemorySize:u64 pGroupCountRet:ptr;
urMemBufferCreate hContext:handle flags:u32 size:u64 pProperties:ptr? phBuffer:ptr;
urMemBufferCreateWithNativeHandle hNativeMem:u64 hContext:handle pProperties:ptr? phMem:ptr;
urMemBufferPartition hBuffer:handle flags:u32 bufferCreateType:u32 pRegion:ptr phMem:ptr;
urMemGetInfo hMemory:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urMemGetNativeHandle hMem:handle hDevice:handle? phNativeMem:ptr;
urMemImageCreate hContext:handle flags:u32 pImageFormat:ptr pImageDesc:ptr pHost:ptr? phMem:ptr;
urMemImageCreateWithNativeHandle hNativeMem:u64 hContext:handle pImageFormat:ptr pImageDesc:ptr pProperties:ptr?
phMem:ptr;
urMemImageGetInfo hMemory:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urMemRelease hMem:handle;
urMemRetain hMem:handle;
urMemoryExportAllocExportableMemoryExp hContext:handle hDevice:handle alignment:u64 size:u64 handleTypeToExport:u32
ppMem:ptr;
urMemoryExportExportMemoryHandleExp hContext:handle hDevice:handle handleTypeToExport:u32 pMem:ptr pMemHandleRet:ptr;
urMemoryExportFreeExportableMemoryExp hContext:handle hDevice:handle pMem:ptr;
urPhysicalMemCreate hContext:handle hDevice:handle size:u64 pProperties:ptr? phPhysicalMem:ptr;
urPhysicalMemGetInfo hPhysicalMem:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urPhysicalMemRelease hPhysicalMem:handle;
urPhysicalMemRetain hPhysicalMem:handle;
urPlatformCreateWithNativeHandle hNativePlatform:u64 hAdapter:handle pProperties:ptr? phPlatform:ptr;
urPlatformGet hAdapter:handle NumEntries:u32 phPlatforms:ptr? pNumPlatforms:ptr?;
urPlatformGetApiVersion hPlatform:handle pVersion:ptr;
urPlatformGetBackendOption hPlatform:handle pFrontendOption:ptr ppPlatformOption:ptr;
urPlatformGetInfo hPlatform:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urPlatformGetNativeHandle hPlatform:handle phNativePlatform:ptr;
urProgramBuild hContext:handle hProgram:handle pOptions:ptr?;
urProgramBuildExp hProgram:handle numDevices:u32 phDevices:ptr flags:u32 pOptions:ptr?;
urProgramCompile hContext:handle hProgram:handle pOptions:ptr?;
urProgramCompileExp hProgram:handle numDevices:u32 phDevices:ptr flags:u32 pOptions:ptr?;
urProgramCreateWithBinary hContext:handle numDevices:u32 phDevices:ptr pLengths:ptr ppBinaries:ptr pProperties:ptr?
phProgram:ptr;
urProgramCreateWithIL hContext:handle pIL:ptr length:u64 pProperties:ptr? phProgram:ptr;
urProgramCreateWithNativeHandle hNativeProgram:u64 hContext:handle pProperties:ptr? phProgram:ptr;
urProgramDynamicLinkExp hContext:handle count:u32 phPrograms:ptr;
urProgramGetBuildInfo hProgram:handle hDevice:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urProgramGetFunctionPointer hDevice:handle hProgram:handle pFunctionName:ptr ppFunctionPointer:ptr;
urProgramGetGlobalVariablePointer hDevice:handle hProgram:handle pGlobalVariableName:ptr pGlobalVariableSizeRet:ptr?
ppGlobalVariablePointerRet:ptr;
urProgramGetInfo hProgram:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urProgramGetNativeHandle hProgram:handle phNativeProgram:ptr;
urProgramLink hContext:handle count:u32 phPrograms:ptr pOptions:ptr? phProgram:ptr;
urProgramLinkExp hContext:handle numDevices:u32 phDevices:ptr flags:u32 count:u32 phPrograms:ptr pOptions:ptr?
phProgram:ptr;
urProgramRelease hProgram:handle;
urProgramRetain hProgram:handle;
urProgramSetSpecializationConstants hProgram:handle count:u32 pSpecConstants:ptr;
urQueueBeginCaptureIntoGraphExp hQueue:handle hGraph:handle;
urQueueBeginGraphCaptureExp hQueue:handle;
urQueueCreate hContext:handle hDevice:handle pProperties:ptr? phQueue:ptr;
urQueueCreateWithNativeHandle hNativeQueue:u64 hContext:handle hDevice:handle? pProperties:ptr? phQueue:ptr;
urQueueEndGraphCaptureExp hQueue:handle phGraph:ptr;
urQueueFinish hQueue:handle;
urQueueFlush hQueue:handle;
urQueueGetGraphExp hQueue:handle phGraph:ptr;
urQueueGetInfo hQueue:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urQueueGetNativeHandle hQueue:handle pDesc:ptr? phNativeQueue:ptr;
urQueueIsGraphCaptureEnabledExp hQueue:handle pResult:ptr;
urQueueRelease hQueue:handle;
urQueueRetain hQueue:handle;
urSamplerCreate hContext:handle pDesc:ptr phSampler:ptr;
urSamplerCreateWithNativeHandle hNativeSampler:u64 hContext:handle pProperties:ptr? phSampler:ptr;
urSamplerGetInfo hSampler:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urSamplerGetNativeHandle hSampler:handle phNativeSampler:ptr;
urSamplerRelease hSampler:handle;
urSamplerRetain hSampler:handle;
urUSMContextMemcpyExp hContext:handle pDst:ptr pSrc:ptr size:u64;
urUSMDeviceAlloc hContext:handle hDevice:handle pUSMDesc:ptr? pool:handle? size:u64 ppMem:ptr;
urUSMFree hContext:handle pMem:ptr;
urUSMGetMemAllocInfo hContext:handle pMem:ptr propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urUSMHostAlloc hContext:handle pUSMDesc:ptr? pool:handle? size:u64 ppMem:ptr;
urUSMHostAllocRegisterExp hContext:handle pHostMem:ptr size:u64 pProperties:ptr?;
urUSMHostAllocUnregisterExp hContext:handle pHostMem:ptr;
urUSMImportExp hContext:handle pMem:ptr size:u64;
urUSMPitchedAllocExp hContext:handle hDevice:handle pUSMDesc:ptr? pool:handle? widthInBytes:u64 height:u64
elementSizeBytes:u64 ppMem:ptr pResultPitch:ptr;
urUSMPoolCreate hContext:handle pPoolDesc:ptr ppPool:ptr;
urUSMPoolCreateExp hContext:handle hDevice:handle pPoolDesc:ptr pPool:ptr;
urUSMPoolDestroyExp hContext:handle hDevice:handle hPool:handle;
urUSMPoolGetDefaultDevicePoolExp hContext:handle hDevice:handle pPool:ptr;
urUSMPoolGetDevicePoolExp hContext:handle hDevice:handle pPool:ptr;
urUSMPoolGetInfo hPool:handle propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urUSMPoolGetInfoExp hPool:handle propName:u32 pPropValue:ptr? pPropSizeRet:ptr?;
urUSMPoolRelease pPool:handle;
urUSMPoolRetain pPool:handle;
urUSMPoolSetDevicePoolExp hContext:handle hDevice:handle hPool:handle;
urUSMPoolSetInfoExp hPool:handle propName:u32 pPropValue:ptr propSize:u64;
urUSMPoolTrimToExp hContext:handle hDevice:handle hPool:handle minBytesToKeep:u64;
urUSMReleaseExp hContext:handle pMem:ptr;
urUSMSharedAlloc hContext:handle hDevice:handle pUSMDesc:ptr? pool:handle? size:u64 ppMem:ptr;
urUsmP2PDisablePeerAccessExp commandDevice:handle peerDevice:handle;
urUsmP2PEnablePeerAccessExp commandDevice:handle peerDevice:handle;
urUsmP2PPeerAccessGetInfoExp commandDevice:handle peerDevice:handle propName:u32 propSize:u64 pPropValue:ptr?
pPropSizeRet:ptr?;
urVirtualMemFree hContext:handle pStart:ptr size:u64;
urVirtualMemGetInfo hContext:handle pStart:ptr size:u64 propName:u32 propSize:u64 pPropValue:ptr? pPropSizeRet:ptr?;
urVirtualMemGranularityGetInfo hContext:handle hDevice:handle? allocationSize:u64 propName:u32 propSize:u64
pPropValue:ptr? pPropSizeRet:ptr?;
urVirtualMemMap hContext:handle pStart:ptr size:u64 hPhysicalMem:handle offset:u64 flags:u32;
urVirtualMemReserve hContext:handle pStart:ptr? size:u64 ppStart:ptr;
urVirtualMemSetAccess hContext:handle pStart:ptr size:u64 flags:u32;
urVirtualMemUnmap hContext:handle pStart:ptr size:u64;
"""
