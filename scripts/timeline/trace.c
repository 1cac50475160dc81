// Writes when every kernel of a program ran: one line `name start_ns end_ns blocks threads` for each, graph nodes included.
//
//   gcc -shared -fPIC -O2 -I CUPTI/include -o libtrace.so trace.c -L CUPTI/lib -l:libcupti.so.13
//   CUDA_INJECTION64_PATH=libtrace.so STEPGRAPH_TRACE=kernels.txt host profile ...
//
// The driver loads the library named by CUDA_INJECTION64_PATH and calls InitializeInjection. Times are CUPTI's, of kernels
// that run side by side (kind CONCURRENT_KERNEL), each with its node traced for itself.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (8u << 20)

static FILE *out;

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records) {
    *size = BYTES;
    *records = 0;
    *buffer = aligned_alloc(8, BYTES);
    if (!*buffer) {
        fputs("trace: no memory for CUPTI's records\n", stderr);
        exit(1);
    }
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        CUpti_ActivityKernel9 *k = (CUpti_ActivityKernel9 *)record;
        fprintf(out, "%s %llu %llu %d %d\n", k->name, (unsigned long long)k->start, (unsigned long long)k->end,
                k->gridX * k->gridY * k->gridZ, k->blockX * k->blockY * k->blockZ);
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void) {
    const char *path = getenv("STEPGRAPH_TRACE");
    out = fopen(path ? path : "kernels.txt", "w");
    if (!out || cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
        fputs("trace: CUPTI does not start\n", stderr);
        return 0;
    }
    atexit(finish);
    return 1;
}
