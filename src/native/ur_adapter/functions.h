/* Made by `python -m xpushare.ur._generate` from src/xpushare/ur: not to be edited. */

#ifndef XP_FUNCTIONS
#define XP_FUNCTIONS 123
#define XP_EVENT_WAIT 53
#define XP_EVENTS_WAIT 21
#define XP_HOST_TRAIT 2
#define XP_COUNTED_KINDS 6
#define XP_QUEUE_KIND 2
#define XP_EVENT_KIND 3
#define XP_QUEUE_CONTEXT 0
#define XP_QUEUE_DEVICE 1
#define XP_QUEUE_EMPTY 6
#endif

#ifdef XP_TABLE /* the entry points and tables, for one file */

static uint32_t urAdapterGet(uint32_t a0, void *a1, void *a2)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(0, words, 3);
}

static uint32_t urAdapterGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(1, words, 5);
}

static uint32_t urAdapterGetLastError(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(2, words, 3);
}

static uint32_t urAdapterRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(3, words, 1);
}

static uint32_t urAdapterRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(4, words, 1);
}

static uint32_t urAdapterSetLoggerCallback(void *a0, void *a1, void *a2, uint32_t a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3};
    return xp_answer(5, words, 4);
}

static uint32_t urAdapterSetLoggerCallbackLevel(void *a0, uint32_t a1)
{
    const uint64_t words[] = {(uintptr_t)a0, a1};
    return xp_answer(6, words, 2);
}

static uint32_t urContextCreate(uint32_t a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(7, words, 4);
}

static uint32_t urContextCreateWithNativeHandle(uint64_t a0, void *a1, uint32_t a2, void *a3, void *a4, void *a5)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, a2, (uintptr_t)a3, (uintptr_t)a4, (uintptr_t)a5};
    return xp_answer(8, words, 6);
}

static uint32_t urContextGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(9, words, 5);
}

static uint32_t urContextGetNativeHandle(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(10, words, 2);
}

static uint32_t urContextRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(11, words, 1);
}

static uint32_t urContextRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(12, words, 1);
}

static uint32_t urDeviceCreateWithNativeHandle(uint64_t a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(13, words, 4);
}

static uint32_t urDeviceGet(void *a0, uint32_t a1, uint32_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(14, words, 5);
}

static uint32_t urDeviceGetGlobalTimestamps(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(15, words, 3);
}

static uint32_t urDeviceGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(16, words, 5);
}

static uint32_t urDeviceGetNativeHandle(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(17, words, 2);
}

static uint32_t urDeviceRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(18, words, 1);
}

static uint32_t urDeviceRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(19, words, 1);
}

static uint32_t urDeviceWaitExp(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(20, words, 1);
}

static uint32_t urEnqueueEventsWait(void *a0, uint32_t a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(21, words, 4);
}

static uint32_t urEnqueueEventsWaitWithBarrier(void *a0, uint32_t a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(22, words, 4);
}

static uint32_t urEnqueueEventsWaitWithBarrierExt(void *a0, void *a1, uint32_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(23, words, 5);
}

static uint32_t urEnqueueHostTaskExp(void *a0, void *a1, void *a2, void *a3, uint32_t a4, void *a5, void *a6)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3, a4, (uintptr_t)a5, (uintptr_t)a6};
    return xp_answer(24, words, 7);
}

static uint32_t urEnqueueMemBufferCopy(void *a0, void *a1, void *a2, uint64_t a3, uint64_t a4, uint64_t a5, uint32_t a6, void *a7, void *a8)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, a4, a5, a6, (uintptr_t)a7, (uintptr_t)a8};
    return xp_answer(25, words, 9);
}

static uint32_t urEnqueueMemBufferCopyRect(void *a0, void *a1, void *a2, xp_three a3, xp_three a4, xp_three a5, uint64_t a6, uint64_t a7, uint64_t a8, uint64_t a9, uint32_t a10, void *a11, void *a12)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3.x, a3.y, a3.z, a4.x, a4.y, a4.z, a5.x, a5.y, a5.z, a6, a7, a8, a9, a10, (uintptr_t)a11, (uintptr_t)a12};
    return xp_answer(26, words, 19);
}

static uint32_t urEnqueueMemBufferFill(void *a0, void *a1, void *a2, uint64_t a3, uint64_t a4, uint64_t a5, uint32_t a6, void *a7, void *a8)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, a4, a5, a6, (uintptr_t)a7, (uintptr_t)a8};
    return xp_answer(27, words, 9);
}

static uint32_t urEnqueueMemBufferMap(void *a0, void *a1, bool a2, uint32_t a3, uint64_t a4, uint64_t a5, uint32_t a6, void *a7, void *a8, void *a9)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, a5, a6, (uintptr_t)a7, (uintptr_t)a8, (uintptr_t)a9};
    return xp_answer(28, words, 10);
}

static uint32_t urEnqueueMemBufferRead(void *a0, void *a1, bool a2, uint64_t a3, uint64_t a4, void *a5, uint32_t a6, void *a7, void *a8)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5, a6, (uintptr_t)a7, (uintptr_t)a8};
    return xp_answer(29, words, 9);
}

static uint32_t urEnqueueMemBufferReadRect(void *a0, void *a1, bool a2, xp_three a3, xp_three a4, xp_three a5, uint64_t a6, uint64_t a7, uint64_t a8, uint64_t a9, void *a10, uint32_t a11, void *a12, void *a13)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3.x, a3.y, a3.z, a4.x, a4.y, a4.z, a5.x, a5.y, a5.z, a6, a7, a8, a9, (uintptr_t)a10, a11, (uintptr_t)a12, (uintptr_t)a13};
    return xp_answer(30, words, 20);
}

static uint32_t urEnqueueMemBufferWrite(void *a0, void *a1, bool a2, uint64_t a3, uint64_t a4, void *a5, uint32_t a6, void *a7, void *a8)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5, a6, (uintptr_t)a7, (uintptr_t)a8};
    return xp_answer(31, words, 9);
}

static uint32_t urEnqueueMemBufferWriteRect(void *a0, void *a1, bool a2, xp_three a3, xp_three a4, xp_three a5, uint64_t a6, uint64_t a7, uint64_t a8, uint64_t a9, void *a10, uint32_t a11, void *a12, void *a13)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3.x, a3.y, a3.z, a4.x, a4.y, a4.z, a5.x, a5.y, a5.z, a6, a7, a8, a9, (uintptr_t)a10, a11, (uintptr_t)a12, (uintptr_t)a13};
    return xp_answer(32, words, 20);
}

static uint32_t urEnqueueMemUnmap(void *a0, void *a1, void *a2, uint32_t a3, void *a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, (uintptr_t)a4, (uintptr_t)a5};
    return xp_answer(33, words, 6);
}

static uint32_t urEnqueueTimestampRecordingExp(void *a0, bool a1, uint32_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(34, words, 5);
}

static uint32_t urEnqueueUSMAdvise(void *a0, void *a1, uint64_t a2, uint32_t a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, (uintptr_t)a4};
    return xp_answer(35, words, 5);
}

static uint32_t urEnqueueUSMDeviceAllocExp(void *a0, void *a1, uint64_t a2, void *a3, uint32_t a4, void *a5, void *a6, void *a7)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, a4, (uintptr_t)a5, (uintptr_t)a6, (uintptr_t)a7};
    return xp_answer(36, words, 8);
}

static uint32_t urEnqueueUSMFill(void *a0, void *a1, uint64_t a2, void *a3, uint64_t a4, uint32_t a5, void *a6, void *a7)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, a4, a5, (uintptr_t)a6, (uintptr_t)a7};
    return xp_answer(37, words, 8);
}

static uint32_t urEnqueueUSMFill2D(void *a0, void *a1, uint64_t a2, uint64_t a3, void *a4, uint64_t a5, uint64_t a6, uint32_t a7, void *a8, void *a9)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, (uintptr_t)a4, a5, a6, a7, (uintptr_t)a8, (uintptr_t)a9};
    return xp_answer(38, words, 10);
}

static uint32_t urEnqueueUSMFreeExp(void *a0, void *a1, void *a2, uint32_t a3, void *a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, (uintptr_t)a4, (uintptr_t)a5};
    return xp_answer(39, words, 6);
}

static uint32_t urEnqueueUSMHostAllocExp(void *a0, void *a1, uint64_t a2, void *a3, uint32_t a4, void *a5, void *a6, void *a7)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, a4, (uintptr_t)a5, (uintptr_t)a6, (uintptr_t)a7};
    return xp_answer(40, words, 8);
}

static uint32_t urEnqueueUSMMemcpy(void *a0, bool a1, void *a2, void *a3, uint64_t a4, uint32_t a5, void *a6, void *a7)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3, a4, a5, (uintptr_t)a6, (uintptr_t)a7};
    return xp_answer(41, words, 8);
}

static uint32_t urEnqueueUSMMemcpy2D(void *a0, bool a1, void *a2, uint64_t a3, void *a4, uint64_t a5, uint64_t a6, uint64_t a7, uint32_t a8, void *a9, void *a10)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, a3, (uintptr_t)a4, a5, a6, a7, a8, (uintptr_t)a9, (uintptr_t)a10};
    return xp_answer(42, words, 11);
}

static uint32_t urEnqueueUSMPrefetch(void *a0, void *a1, uint64_t a2, uint32_t a3, uint32_t a4, void *a5, void *a6)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5, (uintptr_t)a6};
    return xp_answer(43, words, 7);
}

static uint32_t urEnqueueUSMSharedAllocExp(void *a0, void *a1, uint64_t a2, void *a3, uint32_t a4, void *a5, void *a6, void *a7)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, a4, (uintptr_t)a5, (uintptr_t)a6, (uintptr_t)a7};
    return xp_answer(44, words, 8);
}

static uint32_t urEventCreateExp(void *a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(45, words, 4);
}

static uint32_t urEventCreateWithNativeHandle(uint64_t a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(46, words, 4);
}

static uint32_t urEventGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(47, words, 5);
}

static uint32_t urEventGetNativeHandle(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(48, words, 2);
}

static uint32_t urEventGetProfilingInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(49, words, 5);
}

static uint32_t urEventRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(50, words, 1);
}

static uint32_t urEventRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(51, words, 1);
}

static uint32_t urEventSetCallback(void *a0, uint32_t a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(52, words, 4);
}

static uint32_t urEventWait(uint32_t a0, void *a1)
{
    const uint64_t words[] = {a0, (uintptr_t)a1};
    return xp_answer(53, words, 2);
}

static uint32_t urIPCCloseMemHandleExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(54, words, 2);
}

static uint32_t urIPCClosePhysMemHandleExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(55, words, 2);
}

static uint32_t urIPCGetEventHandleExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(56, words, 3);
}

static uint32_t urIPCGetMemHandleExp(void *a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(57, words, 4);
}

static uint32_t urIPCGetPhysMemHandleExp(void *a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(58, words, 4);
}

static uint32_t urIPCOpenEventHandleExp(void *a0, void *a1, uint64_t a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3};
    return xp_answer(59, words, 4);
}

static uint32_t urIPCOpenMemHandleExp(void *a0, void *a1, void *a2, uint64_t a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, (uintptr_t)a4};
    return xp_answer(60, words, 5);
}

static uint32_t urIPCOpenPhysMemHandleExp(void *a0, void *a1, void *a2, uint64_t a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, (uintptr_t)a4};
    return xp_answer(61, words, 5);
}

static uint32_t urIPCPutEventHandleExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(62, words, 2);
}

static uint32_t urIPCPutMemHandleExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(63, words, 2);
}

static uint32_t urIPCPutPhysMemHandleExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(64, words, 2);
}

static uint32_t urMemBufferCreate(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(65, words, 5);
}

static uint32_t urMemBufferPartition(void *a0, uint32_t a1, uint32_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(66, words, 5);
}

static uint32_t urMemGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(67, words, 5);
}

static uint32_t urMemRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(68, words, 1);
}

static uint32_t urMemRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(69, words, 1);
}

static uint32_t urMemoryExportAllocExportableMemoryExp(void *a0, void *a1, uint64_t a2, uint64_t a3, uint32_t a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5};
    return xp_answer(70, words, 6);
}

static uint32_t urMemoryExportExportMemoryHandleExp(void *a0, void *a1, uint32_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(71, words, 5);
}

static uint32_t urMemoryExportFreeExportableMemoryExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(72, words, 3);
}

static uint32_t urPhysicalMemCreate(void *a0, void *a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(73, words, 5);
}

static uint32_t urPhysicalMemGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(74, words, 5);
}

static uint32_t urPhysicalMemRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(75, words, 1);
}

static uint32_t urPhysicalMemRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(76, words, 1);
}

static uint32_t urPlatformCreateWithNativeHandle(uint64_t a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(77, words, 4);
}

static uint32_t urPlatformGet(void *a0, uint32_t a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(78, words, 4);
}

static uint32_t urPlatformGetApiVersion(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(79, words, 2);
}

static uint32_t urPlatformGetBackendOption(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(80, words, 3);
}

static uint32_t urPlatformGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(81, words, 5);
}

static uint32_t urPlatformGetNativeHandle(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(82, words, 2);
}

static uint32_t urQueueCreate(void *a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(83, words, 4);
}

static uint32_t urQueueCreateWithNativeHandle(uint64_t a0, void *a1, void *a2, void *a3, void *a4)
{
    const uint64_t words[] = {a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(84, words, 5);
}

static uint32_t urQueueFinish(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(85, words, 1);
}

static uint32_t urQueueFlush(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(86, words, 1);
}

static uint32_t urQueueGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(87, words, 5);
}

static uint32_t urQueueGetNativeHandle(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(88, words, 3);
}

static uint32_t urQueueRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(89, words, 1);
}

static uint32_t urQueueRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(90, words, 1);
}

static uint32_t urUSMContextMemcpyExp(void *a0, void *a1, void *a2, uint64_t a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3};
    return xp_answer(91, words, 4);
}

static uint32_t urUSMDeviceAlloc(void *a0, void *a1, void *a2, void *a3, uint64_t a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3, a4, (uintptr_t)a5};
    return xp_answer(92, words, 6);
}

static uint32_t urUSMFree(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(93, words, 2);
}

static uint32_t urUSMGetMemAllocInfo(void *a0, void *a1, uint32_t a2, uint64_t a3, void *a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, (uintptr_t)a4, (uintptr_t)a5};
    return xp_answer(94, words, 6);
}

static uint32_t urUSMHostAlloc(void *a0, void *a1, void *a2, uint64_t a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3, (uintptr_t)a4};
    return xp_answer(95, words, 5);
}

static uint32_t urUSMHostAllocRegisterExp(void *a0, void *a1, uint64_t a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3};
    return xp_answer(96, words, 4);
}

static uint32_t urUSMHostAllocUnregisterExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(97, words, 2);
}

static uint32_t urUSMImportExp(void *a0, void *a1, uint64_t a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2};
    return xp_answer(98, words, 3);
}

static uint32_t urUSMPoolCreate(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(99, words, 3);
}

static uint32_t urUSMPoolCreateExp(void *a0, void *a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(100, words, 4);
}

static uint32_t urUSMPoolDestroyExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(101, words, 3);
}

static uint32_t urUSMPoolGetDefaultDevicePoolExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(102, words, 3);
}

static uint32_t urUSMPoolGetDevicePoolExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(103, words, 3);
}

static uint32_t urUSMPoolGetInfo(void *a0, uint32_t a1, uint64_t a2, void *a3, void *a4)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, a2, (uintptr_t)a3, (uintptr_t)a4};
    return xp_answer(104, words, 5);
}

static uint32_t urUSMPoolGetInfoExp(void *a0, uint32_t a1, void *a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, (uintptr_t)a3};
    return xp_answer(105, words, 4);
}

static uint32_t urUSMPoolRelease(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(106, words, 1);
}

static uint32_t urUSMPoolRetain(void *a0)
{
    const uint64_t words[] = {(uintptr_t)a0};
    return xp_answer(107, words, 1);
}

static uint32_t urUSMPoolSetDevicePoolExp(void *a0, void *a1, void *a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2};
    return xp_answer(108, words, 3);
}

static uint32_t urUSMPoolSetInfoExp(void *a0, uint32_t a1, void *a2, uint64_t a3)
{
    const uint64_t words[] = {(uintptr_t)a0, a1, (uintptr_t)a2, a3};
    return xp_answer(109, words, 4);
}

static uint32_t urUSMPoolTrimToExp(void *a0, void *a1, void *a2, uint64_t a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, a3};
    return xp_answer(110, words, 4);
}

static uint32_t urUSMReleaseExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(111, words, 2);
}

static uint32_t urUSMSharedAlloc(void *a0, void *a1, void *a2, void *a3, uint64_t a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, (uintptr_t)a2, (uintptr_t)a3, a4, (uintptr_t)a5};
    return xp_answer(112, words, 6);
}

static uint32_t urUsmP2PDisablePeerAccessExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(113, words, 2);
}

static uint32_t urUsmP2PEnablePeerAccessExp(void *a0, void *a1)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1};
    return xp_answer(114, words, 2);
}

static uint32_t urUsmP2PPeerAccessGetInfoExp(void *a0, void *a1, uint32_t a2, uint64_t a3, void *a4, void *a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, (uintptr_t)a4, (uintptr_t)a5};
    return xp_answer(115, words, 6);
}

static uint32_t urVirtualMemFree(void *a0, void *a1, uint64_t a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2};
    return xp_answer(116, words, 3);
}

static uint32_t urVirtualMemGetInfo(void *a0, void *a1, uint64_t a2, uint32_t a3, uint64_t a4, void *a5, void *a6)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5, (uintptr_t)a6};
    return xp_answer(117, words, 7);
}

static uint32_t urVirtualMemGranularityGetInfo(void *a0, void *a1, uint64_t a2, uint32_t a3, uint64_t a4, void *a5, void *a6)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3, a4, (uintptr_t)a5, (uintptr_t)a6};
    return xp_answer(118, words, 7);
}

static uint32_t urVirtualMemMap(void *a0, void *a1, uint64_t a2, void *a3, uint64_t a4, uint32_t a5)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3, a4, a5};
    return xp_answer(119, words, 6);
}

static uint32_t urVirtualMemReserve(void *a0, void *a1, uint64_t a2, void *a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, (uintptr_t)a3};
    return xp_answer(120, words, 4);
}

static uint32_t urVirtualMemSetAccess(void *a0, void *a1, uint64_t a2, uint32_t a3)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2, a3};
    return xp_answer(121, words, 4);
}

static uint32_t urVirtualMemUnmap(void *a0, void *a1, uint64_t a2)
{
    const uint64_t words[] = {(uintptr_t)a0, (uintptr_t)a1, a2};
    return xp_answer(122, words, 3);
}

/* Gives something back: answered as done where nothing can be asked any more. */
static const bool xp_ends[XP_FUNCTIONS] = {
    [3] = true, /* urAdapterRelease */
    [11] = true, /* urContextRelease */
    [18] = true, /* urDeviceRelease */
    [39] = true, /* urEnqueueUSMFreeExp */
    [50] = true, /* urEventRelease */
    [54] = true, /* urIPCCloseMemHandleExp */
    [55] = true, /* urIPCClosePhysMemHandleExp */
    [62] = true, /* urIPCPutEventHandleExp */
    [63] = true, /* urIPCPutMemHandleExp */
    [64] = true, /* urIPCPutPhysMemHandleExp */
    [68] = true, /* urMemRelease */
    [72] = true, /* urMemoryExportFreeExportableMemoryExp */
    [75] = true, /* urPhysicalMemRelease */
    [89] = true, /* urQueueRelease */
    [93] = true, /* urUSMFree */
    [97] = true, /* urUSMHostAllocUnregisterExp */
    [101] = true, /* urUSMPoolDestroyExp */
    [106] = true, /* urUSMPoolRelease */
    [116] = true, /* urVirtualMemFree */
};

/* What is answered without Python, and for which kind of handles. */
static const struct {
    uint8_t how, kind;
} xp_native_answers[XP_FUNCTIONS] = {
    [1] = {XP_ASKS, 7}, /* urAdapterGetInfo */
    [9] = {XP_ASKS, 1}, /* urContextGetInfo */
    [11] = {XP_RELEASES, 1}, /* urContextRelease */
    [12] = {XP_RETAINS, 1}, /* urContextRetain */
    [16] = {XP_ASKS, 9}, /* urDeviceGetInfo */
    [47] = {XP_STATUS, 3}, /* urEventGetInfo */
    [50] = {XP_RELEASES, 3}, /* urEventRelease */
    [51] = {XP_RETAINS, 3}, /* urEventRetain */
    [52] = {XP_CALLS_BACK, 3}, /* urEventSetCallback */
    [53] = {XP_WAITS, 3}, /* urEventWait */
    [67] = {XP_ASKS, 5}, /* urMemGetInfo */
    [68] = {XP_RELEASES, 5}, /* urMemRelease */
    [69] = {XP_RETAINS, 5}, /* urMemRetain */
    [74] = {XP_ASKS, 4}, /* urPhysicalMemGetInfo */
    [75] = {XP_RELEASES, 4}, /* urPhysicalMemRelease */
    [76] = {XP_RETAINS, 4}, /* urPhysicalMemRetain */
    [81] = {XP_ASKS, 8}, /* urPlatformGetInfo */
    [85] = {XP_FINISHES, 2}, /* urQueueFinish */
    [87] = {XP_ASKS, 2}, /* urQueueGetInfo */
    [89] = {XP_RELEASES, 2}, /* urQueueRelease */
    [90] = {XP_RETAINS, 2}, /* urQueueRetain */
    [104] = {XP_ASKS, 6}, /* urUSMPoolGetInfo */
    [106] = {XP_RELEASES, 6}, /* urUSMPoolRelease */
    [107] = {XP_RETAINS, 6}, /* urUSMPoolRetain */
};

/* Whether no rule refuses a command. */
static bool urEnqueueEventsWait_plain(const uint64_t *a, uint32_t backend)
{
    (void)backend;
    (void)a;
    return true;
}

static bool urEnqueueEventsWaitWithBarrier_plain(const uint64_t *a, uint32_t backend)
{
    (void)backend;
    (void)a;
    return true;
}

static bool urEnqueueEventsWaitWithBarrierExt_plain(const uint64_t *a, uint32_t backend)
{
    (void)backend;
    return !a[1];
}

static bool urEnqueueTimestampRecordingExp_plain(const uint64_t *a, uint32_t backend)
{
    (void)backend;
    return a[4];
}

static bool urEnqueueUSMAdvise_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[1] &&
           !(a[3] & 0xfffe0000u) &&
           !(a[2] == 0) &&
           xp_reaches(backend, a[1], a[2], 1, XP_HINTS);
}

static bool urEnqueueUSMFill_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[1] &&
           !(a[3] == 0) &&
           !((a[2] == 0) || (a[4] == 0)) &&
           !(a[2] > a[4]) &&
           !(a[4] % a[2]) &&
           xp_reaches(backend, a[1], a[4], 1, XP_WRITES);
}

static bool urEnqueueUSMFill2D_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[1] &&
           !(a[4] == 0) &&
           !((a[2] == 0) || (a[2] < a[5])) &&
           !(a[3] == 0) &&
           !(a[3] > (a[5] * a[6])) &&
           !(a[3] & (a[3] - 1)) &&
           !((a[5] == 0) || (a[6] == 0)) &&
           !((a[5] * a[6]) % a[3]) &&
           xp_reaches(backend, a[1], a[2], a[6], XP_WRITES);
}

static bool urEnqueueUSMMemcpy_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[2] &&
           !!a[3] &&
           !(a[4] == 0) &&
           xp_apart(a[2], a[4], a[3], a[4]) &&
           xp_reaches(backend, a[2], a[4], 1, XP_WRITES) &&
           xp_reaches(backend, a[3], a[4], 1, XP_READS);
}

static bool urEnqueueUSMMemcpy2D_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[2] &&
           !!a[4] &&
           !((a[5] == 0) || (a[3] == 0)) &&
           !((a[5] < a[6]) || (a[3] < a[6])) &&
           !(a[7] == 0) &&
           xp_apart(a[2], a[3] * a[7], a[4], a[5] * a[7]) &&
           xp_reaches(backend, a[2], a[3], a[7], XP_WRITES) &&
           xp_reaches(backend, a[4], a[5], a[7], XP_READS);
}

static bool urEnqueueUSMPrefetch_plain(const uint64_t *a, uint32_t backend)
{
    return !!a[1] &&
           !(a[3] & 0xfffffffcu) &&
           !(a[2] == 0) &&
           xp_reaches(backend, a[1], a[2], 1, XP_HINTS);
}

static const xp_command_form xp_command_forms[XP_FUNCTIONS] = {
    [21] = {.plain = urEnqueueEventsWait_plain, .event = 3, .type = 1, .waits = 1},
    [22] = {.plain = urEnqueueEventsWaitWithBarrier_plain, .event = 3, .type = 2, .waits = 1},
    [23] = {.plain = urEnqueueEventsWaitWithBarrierExt_plain, .event = 4, .given = true, .type = 2, .waits = 2},
    [34] = {.plain = urEnqueueTimestampRecordingExp_plain, .blocking = 1, .event = 4, .needs = 1, .type = 8194, .waits = 2},
    [35] = {.plain = urEnqueueUSMAdvise_plain, .event = 4, .type = 20, .uses = {{.at = 1, .nbytes = 2}}},
    [37] = {.plain = urEnqueueUSMFill_plain, .does = XP_FILLS, .event = 7, .pattern = 3, .to = 1, .to_pitch = 4, .type = 17, .uses = {{.at = 1, .nbytes = 4}}, .waits = 5, .width = 4},
    [38] = {.plain = urEnqueueUSMFill2D_plain, .does = XP_FILLS, .event = 9, .pattern = 4, .rows = 6, .to = 1, .to_pitch = 2, .type = 21, .uses = {{.at = 1, .nbytes = 2, .times = 6}}, .waits = 7, .width = 5},
    [41] = {.plain = urEnqueueUSMMemcpy_plain, .blocking = 1, .does = XP_COPIES, .event = 7, .from = 3, .from_pitch = 4, .to = 2, .to_pitch = 4, .type = 18, .uses = {{.at = 2, .nbytes = 4}, {.at = 3, .nbytes = 4}}, .waits = 5, .width = 4},
    [42] = {.plain = urEnqueueUSMMemcpy2D_plain, .blocking = 1, .does = XP_COPIES, .event = 10, .from = 4, .from_pitch = 5, .rows = 7, .to = 2, .to_pitch = 3, .type = 22, .uses = {{.at = 2, .nbytes = 3, .times = 7}, {.at = 4, .nbytes = 5, .times = 7}}, .waits = 8, .width = 6},
    [43] = {.plain = urEnqueueUSMPrefetch_plain, .event = 6, .type = 19, .uses = {{.at = 1, .nbytes = 2}}, .waits = 4},
};

static const xp_order xp_orders[XP_FUNCTIONS] = {
    [20] = {.device = 1}, /* urDeviceWaitExp */
    [21] = {.queue = 1, .events = 2}, /* urEnqueueEventsWait */
    [22] = {.queue = 1, .events = 2}, /* urEnqueueEventsWaitWithBarrier */
    [23] = {.queue = 1, .events = 3, .given = 5}, /* urEnqueueEventsWaitWithBarrierExt */
    [24] = {.queue = 1, .events = 5}, /* urEnqueueHostTaskExp */
    [25] = {.queue = 1, .events = 7}, /* urEnqueueMemBufferCopy */
    [26] = {.queue = 1, .events = 17}, /* urEnqueueMemBufferCopyRect */
    [27] = {.queue = 1, .events = 7}, /* urEnqueueMemBufferFill */
    [28] = {.queue = 1, .events = 7}, /* urEnqueueMemBufferMap */
    [29] = {.queue = 1, .events = 7}, /* urEnqueueMemBufferRead */
    [30] = {.queue = 1, .events = 18}, /* urEnqueueMemBufferReadRect */
    [31] = {.queue = 1, .events = 7}, /* urEnqueueMemBufferWrite */
    [32] = {.queue = 1, .events = 18}, /* urEnqueueMemBufferWriteRect */
    [33] = {.queue = 1, .events = 4}, /* urEnqueueMemUnmap */
    [34] = {.queue = 1, .events = 3}, /* urEnqueueTimestampRecordingExp */
    [35] = {.queue = 1}, /* urEnqueueUSMAdvise */
    [36] = {.queue = 1, .events = 5}, /* urEnqueueUSMDeviceAllocExp */
    [37] = {.queue = 1, .events = 6}, /* urEnqueueUSMFill */
    [38] = {.queue = 1, .events = 8}, /* urEnqueueUSMFill2D */
    [39] = {.queue = 1, .memory = 3, .events = 4}, /* urEnqueueUSMFreeExp */
    [40] = {.queue = 1, .events = 5}, /* urEnqueueUSMHostAllocExp */
    [41] = {.queue = 1, .events = 6}, /* urEnqueueUSMMemcpy */
    [42] = {.queue = 1, .events = 9}, /* urEnqueueUSMMemcpy2D */
    [43] = {.queue = 1, .events = 5}, /* urEnqueueUSMPrefetch */
    [44] = {.queue = 1, .events = 5}, /* urEnqueueUSMSharedAllocExp */
    [47] = {.event = 1}, /* urEventGetInfo */
    [48] = {.event = 1}, /* urEventGetNativeHandle */
    [49] = {.event = 1}, /* urEventGetProfilingInfo */
    [50] = {.event = 1}, /* urEventRelease */
    [51] = {.event = 1}, /* urEventRetain */
    [52] = {.event = 1}, /* urEventSetCallback */
    [53] = {.events = 1}, /* urEventWait */
    [54] = {.memory = 2}, /* urIPCCloseMemHandleExp */
    [56] = {.event = 1}, /* urIPCGetEventHandleExp */
    [72] = {.memory = 3}, /* urMemoryExportFreeExportableMemoryExp */
    [85] = {.queue = 1}, /* urQueueFinish */
    [88] = {.queue = 1}, /* urQueueGetNativeHandle */
    [93] = {.memory = 2}, /* urUSMFree */
    [97] = {.memory = 2}, /* urUSMHostAllocUnregisterExp */
    [116] = {.memory = 2}, /* urVirtualMemFree */
};

static const xp_slot urGetAdapterProcAddrTable_0[] = {
    XP_SLOT(urAdapterGet),
    XP_SLOT(urAdapterRelease),
    XP_SLOT(urAdapterRetain),
    XP_SLOT(urAdapterGetLastError),
    XP_SLOT(urAdapterGetInfo),
    XP_SLOT(urAdapterSetLoggerCallback),
    XP_SLOT(urAdapterSetLoggerCallbackLevel),
};
static const xp_slot urGetBindlessImagesExpProcAddrTable_0[] = {
    XP_NONE /* urBindlessImagesUnsampledImageHandleDestroyExp */,
    XP_NONE /* urBindlessImagesSampledImageHandleDestroyExp */,
    XP_NONE /* urBindlessImagesImageAllocateExp */,
    XP_NONE /* urBindlessImagesImageFreeExp */,
    XP_NONE /* urBindlessImagesUnsampledImageCreateExp */,
    XP_NONE /* urBindlessImagesSampledImageCreateExp */,
    XP_NONE /* urBindlessImagesImageCopyExp */,
    XP_NONE /* urBindlessImagesImageGetInfoExp */,
    XP_NONE /* urBindlessImagesGetImageMemoryHandleTypeSupportExp */,
    XP_NONE /* urBindlessImagesGetImageUnsampledHandleSupportExp */,
    XP_NONE /* urBindlessImagesGetImageSampledHandleSupportExp */,
    XP_NONE /* urBindlessImagesMipmapGetLevelExp */,
    XP_NONE /* urBindlessImagesMipmapFreeExp */,
    XP_NONE /* urBindlessImagesImportExternalMemoryExp */,
    XP_NONE /* urBindlessImagesMapExternalArrayExp */,
    XP_NONE /* urBindlessImagesMapExternalLinearMemoryExp */,
    XP_NONE /* urBindlessImagesReleaseExternalMemoryExp */,
    XP_NONE /* urBindlessImagesFreeMappedLinearMemoryExp */,
    XP_NONE /* urBindlessImagesSupportsImportingHandleTypeExp */,
    XP_NONE /* urBindlessImagesImportExternalSemaphoreExp */,
    XP_NONE /* urBindlessImagesReleaseExternalSemaphoreExp */,
    XP_NONE /* urBindlessImagesWaitExternalSemaphoreExp */,
    XP_NONE /* urBindlessImagesSignalExternalSemaphoreExp */,
};
static const xp_slot urGetCommandBufferExpProcAddrTable_0[] = {
    XP_NONE /* urCommandBufferCreateExp */,
    XP_NONE /* urCommandBufferRetainExp */,
    XP_NONE /* urCommandBufferReleaseExp */,
    XP_NONE /* urCommandBufferFinalizeExp */,
    XP_NONE /* urCommandBufferAppendKernelLaunchExp */,
    XP_NONE /* urCommandBufferAppendKernelLaunchWithArgsExp */,
    XP_NONE /* urCommandBufferAppendUSMMemcpyExp */,
    XP_NONE /* urCommandBufferAppendUSMFillExp */,
    XP_NONE /* urCommandBufferAppendMemBufferCopyExp */,
    XP_NONE /* urCommandBufferAppendMemBufferWriteExp */,
    XP_NONE /* urCommandBufferAppendMemBufferReadExp */,
    XP_NONE /* urCommandBufferAppendMemBufferCopyRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferWriteRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferReadRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferFillExp */,
    XP_NONE /* urCommandBufferAppendUSMPrefetchExp */,
    XP_NONE /* urCommandBufferAppendUSMAdviseExp */,
    XP_NONE /* urCommandBufferAppendNativeCommandExp */,
    XP_NONE /* urCommandBufferUpdateKernelLaunchExp */,
    XP_NONE /* urCommandBufferUpdateSignalEventExp */,
    XP_NONE /* urCommandBufferUpdateWaitEventsExp */,
    XP_NONE /* urCommandBufferGetInfoExp */,
    XP_NONE /* urCommandBufferGetNativeHandleExp */,
};
static const xp_slot urGetCommandBufferExpProcAddrTable_1[] = {
    XP_NONE /* urCommandBufferCreateExp */,
    XP_NONE /* urCommandBufferRetainExp */,
    XP_NONE /* urCommandBufferReleaseExp */,
    XP_NONE /* urCommandBufferFinalizeExp */,
    XP_NONE /* urCommandBufferAppendKernelLaunchExp */,
    XP_NONE /* urCommandBufferAppendUSMMemcpyExp */,
    XP_NONE /* urCommandBufferAppendUSMFillExp */,
    XP_NONE /* urCommandBufferAppendMemBufferCopyExp */,
    XP_NONE /* urCommandBufferAppendMemBufferWriteExp */,
    XP_NONE /* urCommandBufferAppendMemBufferReadExp */,
    XP_NONE /* urCommandBufferAppendMemBufferCopyRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferWriteRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferReadRectExp */,
    XP_NONE /* urCommandBufferAppendMemBufferFillExp */,
    XP_NONE /* urCommandBufferAppendUSMPrefetchExp */,
    XP_NONE /* urCommandBufferAppendUSMAdviseExp */,
    XP_NONE /* urCommandBufferAppendNativeCommandExp */,
    XP_NONE /* urCommandBufferUpdateKernelLaunchExp */,
    XP_NONE /* urCommandBufferUpdateSignalEventExp */,
    XP_NONE /* urCommandBufferUpdateWaitEventsExp */,
    XP_NONE /* urCommandBufferGetInfoExp */,
    XP_NONE /* urCommandBufferGetNativeHandleExp */,
};
static const xp_slot urGetContextProcAddrTable_0[] = {
    XP_SLOT(urContextCreate),
    XP_SLOT(urContextRetain),
    XP_SLOT(urContextRelease),
    XP_SLOT(urContextGetInfo),
    XP_SLOT(urContextGetNativeHandle),
    XP_SLOT(urContextCreateWithNativeHandle),
    XP_NONE /* urContextSetExtendedDeleter */,
};
static const xp_slot urGetDeviceExpProcAddrTable_0[] = {
    XP_SLOT(urDeviceWaitExp),
};
static const xp_slot urGetDeviceProcAddrTable_0[] = {
    XP_SLOT(urDeviceGet),
    XP_SLOT(urDeviceGetInfo),
    XP_SLOT(urDeviceRetain),
    XP_SLOT(urDeviceRelease),
    XP_NONE /* urDevicePartition */,
    XP_NONE /* urDeviceSelectBinary */,
    XP_SLOT(urDeviceGetNativeHandle),
    XP_SLOT(urDeviceCreateWithNativeHandle),
    XP_SLOT(urDeviceGetGlobalTimestamps),
};
static const xp_slot urGetEnqueueExpProcAddrTable_0[] = {
    XP_NONE /* urEnqueueKernelLaunchWithArgsExp */,
    XP_SLOT(urEnqueueUSMDeviceAllocExp),
    XP_SLOT(urEnqueueUSMSharedAllocExp),
    XP_SLOT(urEnqueueUSMHostAllocExp),
    XP_SLOT(urEnqueueUSMFreeExp),
    XP_SLOT(urEnqueueTimestampRecordingExp),
    XP_NONE /* urEnqueueCommandBufferExp */,
    XP_SLOT(urEnqueueHostTaskExp),
    XP_NONE /* urEnqueueNativeCommandExp */,
    XP_NONE /* urEnqueueGraphExp */,
};
static const xp_slot urGetEnqueueExpProcAddrTable_1[] = {
    XP_NONE /* urEnqueueKernelLaunchWithArgsExp */,
    XP_SLOT(urEnqueueUSMDeviceAllocExp),
    XP_SLOT(urEnqueueUSMSharedAllocExp),
    XP_SLOT(urEnqueueUSMHostAllocExp),
    XP_SLOT(urEnqueueUSMFreeExp),
    XP_NONE /* urEnqueueCommandBufferExp */,
    XP_SLOT(urEnqueueTimestampRecordingExp),
    XP_SLOT(urEnqueueHostTaskExp),
    XP_NONE /* urEnqueueNativeCommandExp */,
    XP_NONE /* urEnqueueGraphExp */,
};
static const xp_slot urGetEnqueueProcAddrTable_0[] = {
    XP_SLOT(urEnqueueEventsWait),
    XP_SLOT(urEnqueueEventsWaitWithBarrier),
    XP_SLOT(urEnqueueMemBufferRead),
    XP_SLOT(urEnqueueMemBufferWrite),
    XP_SLOT(urEnqueueMemBufferReadRect),
    XP_SLOT(urEnqueueMemBufferWriteRect),
    XP_SLOT(urEnqueueMemBufferCopy),
    XP_SLOT(urEnqueueMemBufferCopyRect),
    XP_SLOT(urEnqueueMemBufferFill),
    XP_NONE /* urEnqueueMemImageRead */,
    XP_NONE /* urEnqueueMemImageWrite */,
    XP_NONE /* urEnqueueMemImageCopy */,
    XP_SLOT(urEnqueueMemBufferMap),
    XP_SLOT(urEnqueueMemUnmap),
    XP_SLOT(urEnqueueUSMFill),
    XP_SLOT(urEnqueueUSMMemcpy),
    XP_SLOT(urEnqueueUSMPrefetch),
    XP_SLOT(urEnqueueUSMAdvise),
    XP_SLOT(urEnqueueUSMFill2D),
    XP_SLOT(urEnqueueUSMMemcpy2D),
    XP_NONE /* urEnqueueDeviceGlobalVariableWrite */,
    XP_NONE /* urEnqueueDeviceGlobalVariableRead */,
    XP_NONE /* urEnqueueReadHostPipe */,
    XP_NONE /* urEnqueueWriteHostPipe */,
    XP_SLOT(urEnqueueEventsWaitWithBarrierExt),
};
static const xp_slot urGetEnqueueProcAddrTable_1[] = {
    XP_NONE /* urEnqueueKernelLaunch */,
    XP_SLOT(urEnqueueEventsWait),
    XP_SLOT(urEnqueueEventsWaitWithBarrier),
    XP_SLOT(urEnqueueMemBufferRead),
    XP_SLOT(urEnqueueMemBufferWrite),
    XP_SLOT(urEnqueueMemBufferReadRect),
    XP_SLOT(urEnqueueMemBufferWriteRect),
    XP_SLOT(urEnqueueMemBufferCopy),
    XP_SLOT(urEnqueueMemBufferCopyRect),
    XP_SLOT(urEnqueueMemBufferFill),
    XP_NONE /* urEnqueueMemImageRead */,
    XP_NONE /* urEnqueueMemImageWrite */,
    XP_NONE /* urEnqueueMemImageCopy */,
    XP_SLOT(urEnqueueMemBufferMap),
    XP_SLOT(urEnqueueMemUnmap),
    XP_SLOT(urEnqueueUSMFill),
    XP_SLOT(urEnqueueUSMMemcpy),
    XP_SLOT(urEnqueueUSMPrefetch),
    XP_SLOT(urEnqueueUSMAdvise),
    XP_SLOT(urEnqueueUSMFill2D),
    XP_SLOT(urEnqueueUSMMemcpy2D),
    XP_NONE /* urEnqueueDeviceGlobalVariableWrite */,
    XP_NONE /* urEnqueueDeviceGlobalVariableRead */,
    XP_NONE /* urEnqueueReadHostPipe */,
    XP_NONE /* urEnqueueWriteHostPipe */,
    XP_SLOT(urEnqueueEventsWaitWithBarrierExt),
};
static const xp_slot urGetEventExpProcAddrTable_0[] = {
    XP_SLOT(urEventCreateExp),
};
static const xp_slot urGetEventProcAddrTable_0[] = {
    XP_SLOT(urEventGetInfo),
    XP_SLOT(urEventGetProfilingInfo),
    XP_SLOT(urEventWait),
    XP_SLOT(urEventRetain),
    XP_SLOT(urEventRelease),
    XP_SLOT(urEventGetNativeHandle),
    XP_SLOT(urEventCreateWithNativeHandle),
    XP_SLOT(urEventSetCallback),
};
static const xp_slot urGetGraphExpProcAddrTable_0[] = {
    XP_NONE /* urGraphCreateExp */,
    XP_NONE /* urGraphInstantiateGraphExp */,
    XP_NONE /* urGraphDestroyExp */,
    XP_NONE /* urGraphExecutableGraphDestroyExp */,
    XP_NONE /* urGraphIsEmptyExp */,
    XP_NONE /* urGraphGetIdExp */,
    XP_NONE /* urGraphSetDestructionCallbackExp */,
    XP_NONE /* urGraphDumpContentsExp */,
    XP_NONE /* urGraphGetNativeHandleExp */,
    XP_NONE /* urGraphExecutableGraphGetNativeHandleExp */,
};
static const xp_slot urGetGraphExpProcAddrTable_1[] = {
    XP_NONE /* urGraphCreateExp */,
    XP_NONE /* urGraphInstantiateGraphExp */,
    XP_NONE /* urGraphDestroyExp */,
    XP_NONE /* urGraphExecutableGraphDestroyExp */,
    XP_NONE /* urGraphIsEmptyExp */,
    XP_NONE /* urGraphDumpContentsExp */,
};
static const xp_slot urGetIPCExpProcAddrTable_0[] = {
    XP_SLOT(urIPCGetMemHandleExp),
    XP_SLOT(urIPCPutMemHandleExp),
    XP_SLOT(urIPCOpenMemHandleExp),
    XP_SLOT(urIPCCloseMemHandleExp),
    XP_SLOT(urIPCGetPhysMemHandleExp),
    XP_SLOT(urIPCPutPhysMemHandleExp),
    XP_SLOT(urIPCOpenPhysMemHandleExp),
    XP_SLOT(urIPCClosePhysMemHandleExp),
    XP_SLOT(urIPCGetEventHandleExp),
    XP_SLOT(urIPCPutEventHandleExp),
    XP_SLOT(urIPCOpenEventHandleExp),
};
static const xp_slot urGetIPCExpProcAddrTable_1[] = {
    XP_SLOT(urIPCGetMemHandleExp),
    XP_SLOT(urIPCPutMemHandleExp),
    XP_SLOT(urIPCOpenMemHandleExp),
    XP_SLOT(urIPCCloseMemHandleExp),
};
static const xp_slot urGetKernelProcAddrTable_0[] = {
    XP_NONE /* urKernelCreate */,
    XP_NONE /* urKernelGetInfo */,
    XP_NONE /* urKernelGetGroupInfo */,
    XP_NONE /* urKernelGetSubGroupInfo */,
    XP_NONE /* urKernelRetain */,
    XP_NONE /* urKernelRelease */,
    XP_NONE /* urKernelGetNativeHandle */,
    XP_NONE /* urKernelCreateWithNativeHandle */,
    XP_NONE /* urKernelGetSuggestedLocalWorkSize */,
    XP_NONE /* urKernelGetSuggestedLocalWorkSizeWithArgs */,
    XP_NONE /* urKernelSetExecInfo */,
    XP_NONE /* urKernelSetSpecializationConstants */,
    XP_NONE /* urKernelSuggestMaxCooperativeGroupCount */,
};
static const xp_slot urGetKernelProcAddrTable_1[] = {
    XP_NONE /* urKernelCreate */,
    XP_NONE /* urKernelGetInfo */,
    XP_NONE /* urKernelGetGroupInfo */,
    XP_NONE /* urKernelGetSubGroupInfo */,
    XP_NONE /* urKernelRetain */,
    XP_NONE /* urKernelRelease */,
    XP_NONE /* urKernelGetNativeHandle */,
    XP_NONE /* urKernelCreateWithNativeHandle */,
    XP_NONE /* urKernelGetSuggestedLocalWorkSize */,
    XP_NONE /* urKernelSetArgValue */,
    XP_NONE /* urKernelSetArgLocal */,
    XP_NONE /* urKernelSetArgPointer */,
    XP_NONE /* urKernelSetExecInfo */,
    XP_NONE /* urKernelSetArgSampler */,
    XP_NONE /* urKernelSetArgMemObj */,
    XP_NONE /* urKernelSetSpecializationConstants */,
    XP_NONE /* urKernelSuggestMaxCooperativeGroupCount */,
};
static const xp_slot urGetMemProcAddrTable_0[] = {
    XP_NONE /* urMemImageCreate */,
    XP_SLOT(urMemBufferCreate),
    XP_SLOT(urMemRetain),
    XP_SLOT(urMemRelease),
    XP_SLOT(urMemBufferPartition),
    XP_NONE /* urMemGetNativeHandle */,
    XP_NONE /* urMemBufferCreateWithNativeHandle */,
    XP_NONE /* urMemImageCreateWithNativeHandle */,
    XP_SLOT(urMemGetInfo),
    XP_NONE /* urMemImageGetInfo */,
};
static const xp_slot urGetMemoryExportExpProcAddrTable_0[] = {
    XP_SLOT(urMemoryExportAllocExportableMemoryExp),
    XP_SLOT(urMemoryExportFreeExportableMemoryExp),
    XP_SLOT(urMemoryExportExportMemoryHandleExp),
};
static const xp_slot urGetPhysicalMemProcAddrTable_0[] = {
    XP_SLOT(urPhysicalMemCreate),
    XP_SLOT(urPhysicalMemRetain),
    XP_SLOT(urPhysicalMemRelease),
    XP_SLOT(urPhysicalMemGetInfo),
};
static const xp_slot urGetPlatformProcAddrTable_0[] = {
    XP_SLOT(urPlatformGet),
    XP_SLOT(urPlatformGetInfo),
    XP_SLOT(urPlatformGetNativeHandle),
    XP_SLOT(urPlatformCreateWithNativeHandle),
    XP_SLOT(urPlatformGetApiVersion),
    XP_SLOT(urPlatformGetBackendOption),
};
static const xp_slot urGetProgramExpProcAddrTable_0[] = {
    XP_NONE /* urProgramDynamicLinkExp */,
    XP_NONE /* urProgramBuildExp */,
    XP_NONE /* urProgramCompileExp */,
    XP_NONE /* urProgramLinkExp */,
};
static const xp_slot urGetProgramProcAddrTable_0[] = {
    XP_NONE /* urProgramCreateWithIL */,
    XP_NONE /* urProgramCreateWithBinary */,
    XP_NONE /* urProgramBuild */,
    XP_NONE /* urProgramCompile */,
    XP_NONE /* urProgramLink */,
    XP_NONE /* urProgramRetain */,
    XP_NONE /* urProgramRelease */,
    XP_NONE /* urProgramGetFunctionPointer */,
    XP_NONE /* urProgramGetGlobalVariablePointer */,
    XP_NONE /* urProgramGetInfo */,
    XP_NONE /* urProgramGetBuildInfo */,
    XP_NONE /* urProgramSetSpecializationConstants */,
    XP_NONE /* urProgramGetNativeHandle */,
    XP_NONE /* urProgramCreateWithNativeHandle */,
};
static const xp_slot urGetQueueExpProcAddrTable_0[] = {
    XP_NONE /* urQueueBeginGraphCaptureExp */,
    XP_NONE /* urQueueBeginCaptureIntoGraphExp */,
    XP_NONE /* urQueueEndGraphCaptureExp */,
    XP_NONE /* urQueueIsGraphCaptureEnabledExp */,
    XP_NONE /* urQueueGetGraphExp */,
};
static const xp_slot urGetQueueExpProcAddrTable_1[] = {
    XP_NONE /* urQueueBeginGraphCaptureExp */,
    XP_NONE /* urQueueBeginCaptureIntoGraphExp */,
    XP_NONE /* urQueueEndGraphCaptureExp */,
    XP_NONE /* urQueueIsGraphCaptureEnabledExp */,
};
static const xp_slot urGetQueueProcAddrTable_0[] = {
    XP_SLOT(urQueueGetInfo),
    XP_SLOT(urQueueCreate),
    XP_SLOT(urQueueRetain),
    XP_SLOT(urQueueRelease),
    XP_SLOT(urQueueGetNativeHandle),
    XP_SLOT(urQueueCreateWithNativeHandle),
    XP_SLOT(urQueueFinish),
    XP_SLOT(urQueueFlush),
};
static const xp_slot urGetSamplerProcAddrTable_0[] = {
    XP_NONE /* urSamplerCreate */,
    XP_NONE /* urSamplerRetain */,
    XP_NONE /* urSamplerRelease */,
    XP_NONE /* urSamplerGetInfo */,
    XP_NONE /* urSamplerGetNativeHandle */,
    XP_NONE /* urSamplerCreateWithNativeHandle */,
};
static const xp_slot urGetUSMExpProcAddrTable_0[] = {
    XP_SLOT(urUSMPoolCreateExp),
    XP_SLOT(urUSMPoolDestroyExp),
    XP_SLOT(urUSMPoolGetDefaultDevicePoolExp),
    XP_SLOT(urUSMPoolGetInfoExp),
    XP_SLOT(urUSMPoolSetInfoExp),
    XP_SLOT(urUSMPoolSetDevicePoolExp),
    XP_SLOT(urUSMPoolGetDevicePoolExp),
    XP_SLOT(urUSMPoolTrimToExp),
    XP_NONE /* urUSMPitchedAllocExp */,
    XP_SLOT(urUSMContextMemcpyExp),
    XP_SLOT(urUSMHostAllocUnregisterExp),
    XP_SLOT(urUSMHostAllocRegisterExp),
    XP_SLOT(urUSMImportExp),
    XP_SLOT(urUSMReleaseExp),
};
static const xp_slot urGetUSMExpProcAddrTable_1[] = {
    XP_SLOT(urUSMPoolCreateExp),
    XP_SLOT(urUSMPoolDestroyExp),
    XP_SLOT(urUSMPoolGetDefaultDevicePoolExp),
    XP_SLOT(urUSMPoolGetInfoExp),
    XP_SLOT(urUSMPoolSetInfoExp),
    XP_SLOT(urUSMPoolSetDevicePoolExp),
    XP_SLOT(urUSMPoolGetDevicePoolExp),
    XP_SLOT(urUSMPoolTrimToExp),
    XP_NONE /* urUSMPitchedAllocExp */,
    XP_SLOT(urUSMContextMemcpyExp),
    XP_SLOT(urUSMImportExp),
    XP_SLOT(urUSMReleaseExp),
};
static const xp_slot urGetUSMProcAddrTable_0[] = {
    XP_SLOT(urUSMHostAlloc),
    XP_SLOT(urUSMDeviceAlloc),
    XP_SLOT(urUSMSharedAlloc),
    XP_SLOT(urUSMFree),
    XP_SLOT(urUSMGetMemAllocInfo),
    XP_SLOT(urUSMPoolCreate),
    XP_SLOT(urUSMPoolRetain),
    XP_SLOT(urUSMPoolRelease),
    XP_SLOT(urUSMPoolGetInfo),
};
static const xp_slot urGetUsmP2PExpProcAddrTable_0[] = {
    XP_SLOT(urUsmP2PEnablePeerAccessExp),
    XP_SLOT(urUsmP2PDisablePeerAccessExp),
    XP_SLOT(urUsmP2PPeerAccessGetInfoExp),
};
static const xp_slot urGetVirtualMemProcAddrTable_0[] = {
    XP_SLOT(urVirtualMemGranularityGetInfo),
    XP_SLOT(urVirtualMemReserve),
    XP_SLOT(urVirtualMemFree),
    XP_SLOT(urVirtualMemMap),
    XP_SLOT(urVirtualMemUnmap),
    XP_SLOT(urVirtualMemSetAccess),
    XP_SLOT(urVirtualMemGetInfo),
};

#define XP_urGetAdapterProcAddrTable 0
#define XP_urGetBindlessImagesExpProcAddrTable 1
#define XP_urGetCommandBufferExpProcAddrTable 2
#define XP_urGetContextProcAddrTable 3
#define XP_urGetDeviceExpProcAddrTable 4
#define XP_urGetDeviceProcAddrTable 5
#define XP_urGetEnqueueExpProcAddrTable 6
#define XP_urGetEnqueueProcAddrTable 7
#define XP_urGetEventExpProcAddrTable 8
#define XP_urGetEventProcAddrTable 9
#define XP_urGetGraphExpProcAddrTable 10
#define XP_urGetIPCExpProcAddrTable 11
#define XP_urGetKernelProcAddrTable 12
#define XP_urGetMemProcAddrTable 13
#define XP_urGetMemoryExportExpProcAddrTable 14
#define XP_urGetPhysicalMemProcAddrTable 15
#define XP_urGetPlatformProcAddrTable 16
#define XP_urGetProgramExpProcAddrTable 17
#define XP_urGetProgramProcAddrTable 18
#define XP_urGetQueueExpProcAddrTable 19
#define XP_urGetQueueProcAddrTable 20
#define XP_urGetSamplerProcAddrTable 21
#define XP_urGetUSMExpProcAddrTable 22
#define XP_urGetUSMProcAddrTable 23
#define XP_urGetUsmP2PExpProcAddrTable 24
#define XP_urGetVirtualMemProcAddrTable 25

#define XP_TABLES 26
#define XP_GETTERS(G) \
    G(urGetAdapterProcAddrTable) G(urGetBindlessImagesExpProcAddrTable) G(urGetCommandBufferExpProcAddrTable) G(urGetContextProcAddrTable) G(urGetDeviceExpProcAddrTable) G(urGetDeviceProcAddrTable) G(urGetEnqueueExpProcAddrTable) G(urGetEnqueueProcAddrTable) G(urGetEventExpProcAddrTable) G(urGetEventProcAddrTable) G(urGetGraphExpProcAddrTable) G(urGetIPCExpProcAddrTable) G(urGetKernelProcAddrTable) G(urGetMemProcAddrTable) G(urGetMemoryExportExpProcAddrTable) G(urGetPhysicalMemProcAddrTable) G(urGetPlatformProcAddrTable) G(urGetProgramExpProcAddrTable) G(urGetProgramProcAddrTable) G(urGetQueueExpProcAddrTable) G(urGetQueueProcAddrTable) G(urGetSamplerProcAddrTable) G(urGetUSMExpProcAddrTable) G(urGetUSMProcAddrTable) G(urGetUsmP2PExpProcAddrTable) G(urGetVirtualMemProcAddrTable)

static const xp_build xp_builds[] = {
    {"2026.2", {241, 0x522579c03b888d7dull}, {26, 0x228e304077e1f810ull}, {
        XP_TABLE(XP_urGetAdapterProcAddrTable, urGetAdapterProcAddrTable_0),
        XP_TABLE(XP_urGetPlatformProcAddrTable, urGetPlatformProcAddrTable_0),
        XP_TABLE(XP_urGetContextProcAddrTable, urGetContextProcAddrTable_0),
        XP_TABLE(XP_urGetEventProcAddrTable, urGetEventProcAddrTable_0),
        XP_TABLE(XP_urGetEventExpProcAddrTable, urGetEventExpProcAddrTable_0),
        XP_TABLE(XP_urGetProgramProcAddrTable, urGetProgramProcAddrTable_0),
        XP_TABLE(XP_urGetProgramExpProcAddrTable, urGetProgramExpProcAddrTable_0),
        XP_TABLE(XP_urGetKernelProcAddrTable, urGetKernelProcAddrTable_0),
        XP_TABLE(XP_urGetQueueProcAddrTable, urGetQueueProcAddrTable_0),
        XP_TABLE(XP_urGetQueueExpProcAddrTable, urGetQueueExpProcAddrTable_0),
        XP_TABLE(XP_urGetSamplerProcAddrTable, urGetSamplerProcAddrTable_0),
        XP_TABLE(XP_urGetMemProcAddrTable, urGetMemProcAddrTable_0),
        XP_TABLE(XP_urGetPhysicalMemProcAddrTable, urGetPhysicalMemProcAddrTable_0),
        XP_TABLE(XP_urGetEnqueueProcAddrTable, urGetEnqueueProcAddrTable_0),
        XP_TABLE(XP_urGetEnqueueExpProcAddrTable, urGetEnqueueExpProcAddrTable_0),
        XP_TABLE(XP_urGetUSMProcAddrTable, urGetUSMProcAddrTable_0),
        XP_TABLE(XP_urGetUSMExpProcAddrTable, urGetUSMExpProcAddrTable_0),
        XP_TABLE(XP_urGetBindlessImagesExpProcAddrTable, urGetBindlessImagesExpProcAddrTable_0),
        XP_TABLE(XP_urGetCommandBufferExpProcAddrTable, urGetCommandBufferExpProcAddrTable_0),
        XP_TABLE(XP_urGetGraphExpProcAddrTable, urGetGraphExpProcAddrTable_0),
        XP_TABLE(XP_urGetIPCExpProcAddrTable, urGetIPCExpProcAddrTable_0),
        XP_TABLE(XP_urGetMemoryExportExpProcAddrTable, urGetMemoryExportExpProcAddrTable_0),
        XP_TABLE(XP_urGetUsmP2PExpProcAddrTable, urGetUsmP2PExpProcAddrTable_0),
        XP_TABLE(XP_urGetVirtualMemProcAddrTable, urGetVirtualMemProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceProcAddrTable, urGetDeviceProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceExpProcAddrTable, urGetDeviceExpProcAddrTable_0),
    }},
    {"2026.1.2", {235, 0x161fdde187323453ull}, {25, 0x4893caaba13f49faull}, {
        XP_TABLE(XP_urGetAdapterProcAddrTable, urGetAdapterProcAddrTable_0),
        XP_TABLE(XP_urGetPlatformProcAddrTable, urGetPlatformProcAddrTable_0),
        XP_TABLE(XP_urGetContextProcAddrTable, urGetContextProcAddrTable_0),
        XP_TABLE(XP_urGetEventProcAddrTable, urGetEventProcAddrTable_0),
        XP_TABLE(XP_urGetProgramProcAddrTable, urGetProgramProcAddrTable_0),
        XP_TABLE(XP_urGetProgramExpProcAddrTable, urGetProgramExpProcAddrTable_0),
        XP_TABLE(XP_urGetKernelProcAddrTable, urGetKernelProcAddrTable_1),
        XP_TABLE(XP_urGetQueueProcAddrTable, urGetQueueProcAddrTable_0),
        XP_TABLE(XP_urGetQueueExpProcAddrTable, urGetQueueExpProcAddrTable_0),
        XP_TABLE(XP_urGetSamplerProcAddrTable, urGetSamplerProcAddrTable_0),
        XP_TABLE(XP_urGetMemProcAddrTable, urGetMemProcAddrTable_0),
        XP_TABLE(XP_urGetPhysicalMemProcAddrTable, urGetPhysicalMemProcAddrTable_0),
        XP_TABLE(XP_urGetEnqueueProcAddrTable, urGetEnqueueProcAddrTable_1),
        XP_TABLE(XP_urGetEnqueueExpProcAddrTable, urGetEnqueueExpProcAddrTable_1),
        XP_TABLE(XP_urGetUSMProcAddrTable, urGetUSMProcAddrTable_0),
        XP_TABLE(XP_urGetUSMExpProcAddrTable, urGetUSMExpProcAddrTable_1),
        XP_TABLE(XP_urGetBindlessImagesExpProcAddrTable, urGetBindlessImagesExpProcAddrTable_0),
        XP_TABLE(XP_urGetCommandBufferExpProcAddrTable, urGetCommandBufferExpProcAddrTable_1),
        XP_TABLE(XP_urGetGraphExpProcAddrTable, urGetGraphExpProcAddrTable_0),
        XP_TABLE(XP_urGetIPCExpProcAddrTable, urGetIPCExpProcAddrTable_1),
        XP_TABLE(XP_urGetMemoryExportExpProcAddrTable, urGetMemoryExportExpProcAddrTable_0),
        XP_TABLE(XP_urGetUsmP2PExpProcAddrTable, urGetUsmP2PExpProcAddrTable_0),
        XP_TABLE(XP_urGetVirtualMemProcAddrTable, urGetVirtualMemProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceProcAddrTable, urGetDeviceProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceExpProcAddrTable, urGetDeviceExpProcAddrTable_0),
    }},
    {"2026.0", {230, 0x916e892cb9e3bc65ull}, {25, 0x4893caaba13f49faull}, {
        XP_TABLE(XP_urGetAdapterProcAddrTable, urGetAdapterProcAddrTable_0),
        XP_TABLE(XP_urGetPlatformProcAddrTable, urGetPlatformProcAddrTable_0),
        XP_TABLE(XP_urGetContextProcAddrTable, urGetContextProcAddrTable_0),
        XP_TABLE(XP_urGetEventProcAddrTable, urGetEventProcAddrTable_0),
        XP_TABLE(XP_urGetProgramProcAddrTable, urGetProgramProcAddrTable_0),
        XP_TABLE(XP_urGetProgramExpProcAddrTable, urGetProgramExpProcAddrTable_0),
        XP_TABLE(XP_urGetKernelProcAddrTable, urGetKernelProcAddrTable_1),
        XP_TABLE(XP_urGetQueueProcAddrTable, urGetQueueProcAddrTable_0),
        XP_TABLE(XP_urGetQueueExpProcAddrTable, urGetQueueExpProcAddrTable_1),
        XP_TABLE(XP_urGetSamplerProcAddrTable, urGetSamplerProcAddrTable_0),
        XP_TABLE(XP_urGetMemProcAddrTable, urGetMemProcAddrTable_0),
        XP_TABLE(XP_urGetPhysicalMemProcAddrTable, urGetPhysicalMemProcAddrTable_0),
        XP_TABLE(XP_urGetEnqueueProcAddrTable, urGetEnqueueProcAddrTable_1),
        XP_TABLE(XP_urGetEnqueueExpProcAddrTable, urGetEnqueueExpProcAddrTable_1),
        XP_TABLE(XP_urGetUSMProcAddrTable, urGetUSMProcAddrTable_0),
        XP_TABLE(XP_urGetUSMExpProcAddrTable, urGetUSMExpProcAddrTable_1),
        XP_TABLE(XP_urGetBindlessImagesExpProcAddrTable, urGetBindlessImagesExpProcAddrTable_0),
        XP_TABLE(XP_urGetCommandBufferExpProcAddrTable, urGetCommandBufferExpProcAddrTable_1),
        XP_TABLE(XP_urGetGraphExpProcAddrTable, urGetGraphExpProcAddrTable_1),
        XP_TABLE(XP_urGetIPCExpProcAddrTable, urGetIPCExpProcAddrTable_1),
        XP_TABLE(XP_urGetMemoryExportExpProcAddrTable, urGetMemoryExportExpProcAddrTable_0),
        XP_TABLE(XP_urGetUsmP2PExpProcAddrTable, urGetUsmP2PExpProcAddrTable_0),
        XP_TABLE(XP_urGetVirtualMemProcAddrTable, urGetVirtualMemProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceProcAddrTable, urGetDeviceProcAddrTable_0),
        XP_TABLE(XP_urGetDeviceExpProcAddrTable, urGetDeviceExpProcAddrTable_0),
    }},
};

#endif
