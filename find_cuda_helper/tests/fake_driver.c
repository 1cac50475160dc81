/* A driver of a few functions: what the test needs to see that arguments and results pass the trampolines. */
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int code, const char **text) { (void)code; *text = "FROM_THE_DRIVER"; return 0; }

/* Integer, float and stack arguments: eleven of them, six in registers on x86_64. */
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra)
{
    int right = f == (void *)1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 && shared == 8 &&
                stream == (void *)9 && params == (void **)10 && extra == (void **)11;
    return right ? 0 : 700;
}
int cuTexRefSetMipmapLevelBias(void *texref, float bias) { return texref == (void *)1 && bias == 0.375f ? 0 : 700; }
