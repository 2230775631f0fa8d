// CUDA C++ on a CPU: what kernels take for granted. Included before all else by `compile`.
//
// The threads of a block run one after another. One that waits for others (__syncthreads, __shfl_*) is left on its stack, and goes on when
// they have come so far. Half-precision types are names alone.
#pragma once
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <limits>
#include <type_traits>

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static const
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};
struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};
struct double2 {
    double x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }

// Of the thread that is running. Launches never overlap.
static dim3 threadIdx, blockIdx, blockDim, gridDim;

// What a block shares by its launch.
alignas(64) static char soft_shared[256 << 10];

static void soft_block_barrier();
static void soft_warp_barrier();
static inline void __syncthreads() { soft_block_barrier(); }
static inline void __syncwarp(unsigned = ~0u) { soft_warp_barrier(); }
static inline void __threadfence() {}

alignas(16) static char soft_lanes[1024][16];
static inline unsigned soft_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
static inline unsigned soft_threads() { return blockDim.x * blockDim.y * blockDim.z; }

template <class T> static T soft_shuffle(T value, unsigned lane) {
    static_assert(sizeof(T) <= 16, "a lane has 16 bytes");
    unsigned thread = soft_thread(), other = (thread & ~31u) + lane;
    memcpy(soft_lanes[thread], &value, sizeof(T));
    soft_warp_barrier();
    T found = value;
    if (lane < 32 && other < soft_threads()) memcpy(&found, soft_lanes[other], sizeof(T));
    soft_warp_barrier();
    return found;
}
template <class T> static T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return soft_shuffle(value, (soft_thread() & 31u) ^ (unsigned)mask);
}
template <class T> static T __shfl_down_sync(unsigned, T value, unsigned by, int = 32) {
    return soft_shuffle(value, (soft_thread() & 31u) + by);
}
template <class T> static T __shfl_sync(unsigned, T value, int lane, int = 32) {
    return soft_shuffle(value, (unsigned)lane & 31u);
}

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752440f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
#define __expf expf
#define __logf logf
static inline float __frcp_rn(float x) { return 1.f / x; }
using std::isnan;
using std::isinf;
using std::signbit;

template <class To, class From> static inline To soft_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
static inline unsigned __float_as_uint(float x) { return soft_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return soft_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return soft_bits<float>(x); }
static inline float __int_as_float(int x) { return soft_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return soft_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return soft_bits<double>(x); }

// Nobody runs beside the thread.
template <class T, class V> static inline T atomicAdd(T *at, V value) {
    T old = *at;
    *at = (T)(old + (T)value);
    return old;
}
template <class T, class V> static inline T atomicMax(T *at, V value) {
    T old = *at;
    if (old < (T)value) *at = (T)value;
    return old;
}
template <class T, class V> static inline T atomicMin(T *at, V value) {
    T old = *at;
    if ((T)value < old) *at = (T)value;
    return old;
}
template <class T, class C, class V> static inline T atomicCAS(T *at, C expected, V value) {
    T old = *at;
    if (old == (T)expected) *at = (T)value;
    return old;
}

// Launches. One stack a waiting thread.
struct Soft {
    enum State { READY, AT_BLOCK, AT_WARP, DONE };
    void *sp;
    State state;
    unsigned thread;
    Soft *next_free;
};
static void *soft_scheduler;
static Soft *soft_current, *soft_free;
static unsigned soft_next, soft_count, soft_live, soft_live_of[32];
static void (*soft_kernel)(void **);
static void **soft_arguments;

// Saves what the ABI wants kept, and goes on where another stack was left.
extern "C" void soft_switch(void **save, void *to);
asm(R"(
.text
.local soft_switch
.type soft_switch, @function
soft_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size soft_switch, .-soft_switch
)");

static void soft_enter(unsigned thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

// What runs on a stack: threads, until there are none, or one of them waits.
static void soft_run_threads() {
    for (;;) {
        while (soft_next < soft_count) {
            unsigned thread = soft_next++;
            soft_current->thread = thread;
            soft_enter(thread);
            soft_kernel(soft_arguments);
            soft_live--;
            soft_live_of[soft_current->thread / 32]--;
        }
        soft_current->state = Soft::DONE;
        soft_switch(&soft_current->sp, soft_scheduler);
    }
}

static void soft_park(Soft::State state) {
    Soft *self = soft_current;
    self->state = state;
    soft_switch(&self->sp, soft_scheduler);
    soft_enter(self->thread);
}
static void soft_block_barrier() { soft_park(Soft::AT_BLOCK); }
static void soft_warp_barrier() { soft_park(Soft::AT_WARP); }

static Soft *soft_take() {
    Soft *soft = soft_free;
    if (soft) {
        soft_free = soft->next_free;
        return soft;
    }
    const size_t size = 64 << 10;
    char *stack = (char *)aligned_alloc(64, size);
    soft = new Soft();
    void **top = (void **)(stack + size);
    *--top = nullptr;                   // where nobody returns to
    *--top = (void *)soft_run_threads;  // where the first switch returns to
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    soft->sp = top;
    return soft;
}

static void soft_resume(Soft *soft) {
    soft_current = soft;
    soft->state = Soft::READY;
    soft_switch(&soft_scheduler, soft->sp);
}

static void soft_run_block() {
    static Soft *waiting[1024];
    unsigned waits = 0;
    soft_count = soft_live = soft_threads();
    soft_next = 0;
    for (unsigned warp = 0; warp < 32; warp++)
        soft_live_of[warp] = warp * 32 >= soft_count ? 0 : min(32u, soft_count - warp * 32);
    auto run = [&](Soft *soft) {
        soft_resume(soft);
        if (soft->state == Soft::DONE) {
            soft->next_free = soft_free;
            soft_free = soft;
        } else {
            waiting[waits++] = soft;
        }
    };
    while (soft_next < soft_count) run(soft_take());
    while (waits > 0) {
        unsigned at_warp[32] = {}, at_block = 0;
        for (unsigned at = 0; at < waits; at++) {
            if (waiting[at]->state == Soft::AT_BLOCK) at_block++;
            else at_warp[waiting[at]->thread / 32]++;
        }
        bool all = at_block == soft_live;
        Soft *go[1024];
        unsigned goes = 0, left = 0;
        for (unsigned at = 0; at < waits; at++) {
            Soft *soft = waiting[at];
            unsigned warp = soft->thread / 32;
            bool released = soft->state == Soft::AT_BLOCK ? all : at_warp[warp] == soft_live_of[warp];
            if (released) go[goes++] = soft;
            else waiting[left++] = soft;
        }
        if (goes == 0) {
            fprintf(stderr, "soft CUDA: the threads of a block wait for each other for ever\n");
            abort();
        }
        waits = left;
        for (unsigned at = 0; at < goes; at++) run(go[at]);
    }
}

extern "C" __attribute__((visibility("default"))) void soft_launch(void (*kernel)(void **), void **arguments, const unsigned *grid,
                                                                   const unsigned *block) {
    soft_kernel = kernel;
    soft_arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) soft_run_block();
}
