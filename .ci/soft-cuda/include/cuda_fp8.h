#pragma once
struct __nv_fp8_e4m3 {
    unsigned char __x;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float);
};
enum __nv_fp8_interpretation_t { __NV_E4M3 };
struct __half;
__half __nv_cvt_fp8_to_halfraw(unsigned char, __nv_fp8_interpretation_t);
