// Names of types in half precision, and of functions that candle's kernels name outside of what they have for such types.
#pragma once
struct __half {
    unsigned short bits;
};
bool __hisnan(__half);
__half __hmax(__half, __half), __hmin(__half, __half), __hmax_nan(__half, __half), __hmin_nan(__half, __half);
unsigned short __half_as_ushort(__half);
__half __ushort_as_half(unsigned short);
__half __float2half(float);
float __half2float(__half);
