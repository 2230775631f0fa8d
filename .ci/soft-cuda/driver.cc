// CUDA's driver on a CPU, for tests of programs that have no GPU at hand.
//
// A stream is a queue, and nothing in it is done before somebody waits for it: a program that forgets to wait reads what was there
// before. Memory is full of ones (NaN, indices far outside) until the stream that allocates it gets there, and again when it is freed;
// behind each allocation are bytes that nobody may write. Pageable memory of the host is copied when the call is made, pinned memory
// when the stream gets there. Programs that break a rule are ended, with the rule.
#include "driver.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

std::recursive_mutex lock;
const char IMAGE[] = "soft-cuda:";

struct Stream {
    std::deque<std::function<void()>> queue;
    uint64_t pushed = 0, done = 0;
};
struct Event {
    Stream *stream = nullptr;
    uint64_t at = 0;
};
struct Context {
    int device;
};
struct Kernel {
    void (*call)(void **);
    void (*launch)(void (*)(void **), void **, const unsigned *, const unsigned *);
    const unsigned *sizes;
    std::string name;
};
struct Memory {
    size_t bytes;
    bool freed;
};

static const size_t GUARD = 64;
static const unsigned char GUARDED = 0xA5, ONES = 0xFF;
static const size_t MOST_QUEUED = 20000, MOST_KEPT = 64 << 20;

static std::map<uintptr_t, Memory> device_memory;
static std::map<uintptr_t, size_t> pinned_memory;
static std::deque<std::pair<char *, size_t>> freed_memory;
static size_t used, kept;
static std::vector<Stream *> streams;
static std::vector<Context> contexts;
static thread_local Context *current;
static thread_local Stream *per_thread;

[[noreturn]] static void broken(const char *rule) {
    fprintf(stderr, "soft CUDA: %s\n", rule);
    abort();
}

// How often what was asked for, told when the program ends, for who asks with SOFT_CUDA_COUNT=1.
static std::map<std::string, uint64_t> counts;
void count(const std::string &what) {
    static bool wanted = getenv("SOFT_CUDA_COUNT") != nullptr;
    if (!wanted) return;
    if (counts.empty())
        atexit([] { for (auto &each : counts) fprintf(stderr, "soft CUDA: %8llu %s\n", (unsigned long long)each.second, each.first.c_str()); });
    counts[what]++;
}

// What is refused, and where it was called, for who asks with SOFT_CUDA_EXPLAIN=1.
static int refuse(const char *what) {
    if (getenv("SOFT_CUDA_EXPLAIN")) {
        fprintf(stderr, "soft CUDA refuses: %s\n", what);
        void *calls[64];
        backtrace_symbols_fd(calls, backtrace(calls, 64), 2);
    }
    return INVALID_VALUE;
}

static long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}
static int device_count() { return (int)setting("SOFT_CUDA_DEVICES", 2); }
static size_t total_memory() { return (size_t)setting("SOFT_CUDA_MEMORY", 4L << 30); }

static Stream *new_stream() {
    streams.push_back(new Stream);
    return streams.back();
}

// The null stream is done at once, behind all others: programs that are tested here have no use for it.
static Stream *legacy() {
    static Stream *stream = new_stream();
    return stream;
}

Stream *stream_of(void *handle) {
    if (handle == nullptr || handle == (void *)1) return legacy();
    if (handle == (void *)2) {
        if (!per_thread) per_thread = new_stream();
        return per_thread;
    }
    return (Stream *)handle;
}

static void drain_to(Stream *stream, uint64_t until) {
    while (stream->done < until) {
        if (stream->queue.empty()) broken("a stream waits for itself");
        auto work = std::move(stream->queue.front());
        stream->queue.pop_front();
        work();
        stream->done++;
    }
}
void drain(Stream *stream) { drain_to(stream, stream->pushed); }
static void drain_all() {
    for (size_t at = 0; at < streams.size(); at++) drain(streams[at]);
}

void push(Stream *stream, std::function<void()> work) {
    if (stream == legacy()) {
        drain_all();
        work();
        return;
    }
    stream->queue.push_back(std::move(work));
    stream->pushed++;
    static bool eager = getenv("SOFT_CUDA_EAGER") != nullptr;
    if (eager || stream->queue.size() > MOST_QUEUED) drain(stream);
}

void meet(std::vector<Stream *> streams, std::function<void()> work) {
    std::vector<uint64_t> before;
    for (Stream *stream : streams) before.push_back(stream->pushed);
    auto met = std::make_shared<bool>(false);
    for (Stream *stream : streams)
        push(stream, [=] {
            if (*met) return;
            for (size_t at = 0; at < streams.size(); at++)
                if (streams[at] != stream) drain_to(streams[at], before[at]);
            work();
            *met = true;
        });
}

static Memory *memory_of(const void *at, size_t bytes) {
    auto found = device_memory.upper_bound((uintptr_t)at);
    if (found == device_memory.begin()) return nullptr;
    --found;
    return (uintptr_t)at + bytes <= found->first + found->second.bytes ? &found->second : nullptr;
}
bool is_on_device(const void *at, size_t bytes) {
    Memory *memory = memory_of(at, bytes);
    if (memory && memory->freed) broken("memory is used after it was freed");
    return memory != nullptr;
}
static bool is_pinned(const void *at, size_t bytes) {
    auto found = pinned_memory.upper_bound((uintptr_t)at);
    if (found == pinned_memory.begin()) return false;
    --found;
    return (uintptr_t)at + bytes <= found->first + found->second;
}

// Whether this is the allocation that SOFT_CUDA_REFUSE=n asks to be refused, counted from 1 since the setting was last changed.
static bool is_refused() {
    static std::string last;
    static long count;
    const char *now = getenv("SOFT_CUDA_REFUSE");
    if (last != (now ? now : "")) last = now ? now : "", count = 0;
    return now && ++count == atol(now);
}

static int allocate(uint64_t *at, size_t bytes, Stream *stream) {
    if (bytes == 0) return refuse("memory of no bytes");
    if (is_refused()) return OUT_OF_MEMORY;
    if (used + bytes > total_memory()) drain_all();
    if (used + bytes > total_memory()) return OUT_OF_MEMORY;
    char *memory = (char *)aligned_alloc(256, (bytes + GUARD + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory + bytes, GUARDED, GUARD);
    used += bytes;
    device_memory[(uintptr_t)memory] = {bytes, false};
    *at = (uint64_t)memory;
    push(stream, [=] { memset(memory, ONES, bytes); });
    return SUCCESS;
}

static int release(uint64_t at, Stream *stream) {
    auto found = device_memory.find(at);
    if (found == device_memory.end() || found->second.freed) broken("what is freed was not allocated, or is freed twice");
    found->second.freed = true;
    push(stream, [=] {
        char *memory = (char *)at;
        size_t bytes = device_memory[at].bytes;
        for (size_t byte = 0; byte < GUARD; byte++)
            if ((unsigned char)memory[bytes + byte] != GUARDED) broken("something was written behind the end of memory");
        memset(memory, ONES, bytes);
        device_memory.erase(at);
        used -= bytes;
        freed_memory.push_back({memory, bytes});
        kept += bytes;
        while (kept > MOST_KEPT) {
            free(freed_memory.front().first);
            kept -= freed_memory.front().second;
            freed_memory.pop_front();
        }
    });
    return SUCCESS;
}

// Devices and contexts.
EXPORT int cuInit(unsigned) { return device_count() > 0 ? SUCCESS : NO_DEVICE; }
EXPORT int cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { return *count = device_count(), SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    return *device = ordinal, SUCCESS;
}
EXPORT int cuDeviceGetName(char *name, int room, int device) { return snprintf(name, room, "soft CUDA %d", device), SUCCESS; }
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = total_memory(), SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
        case 1: return *value = 1024, SUCCESS;   // threads of a block
        case 10: return *value = 32, SUCCESS;    // threads of a warp
        case 16: return *value = 2, SUCCESS;     // multiprocessors
        case 41: return *value = 1, SUCCESS;     // unified addressing
        case 75: return *value = 9, SUCCESS;     // compute capability
        case 115: return *value = 1, SUCCESS;    // memory pools
        default: return *value = 0, SUCCESS;
    }
}
EXPORT int cuDeviceCanAccessPeer(int *can, int, int) { return *can = 1, SUCCESS; }
EXPORT int cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = (void *)1, SUCCESS; }
EXPORT int cuDeviceGetMemPool(void **pool, int) { return *pool = (void *)1, SUCCESS; }
EXPORT int cuMemPoolSetAccess(void *, const void *, size_t) { return SUCCESS; }
EXPORT int cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    LOCKED;
    if (contexts.empty())
        for (int each = 0; each < device_count(); each++) contexts.push_back({each});
    return *context = &contexts[device], SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
EXPORT int cuCtxSetCurrent(void *context) { return current = (Context *)context, SUCCESS; }
EXPORT int cuCtxGetCurrent(void **context) { return *context = current, SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { return current ? (*device = current->device, SUCCESS) : INVALID_CONTEXT; }
EXPORT int cuCtxSetFlags(unsigned) { return SUCCESS; }
EXPORT int cuCtxSynchronize() { LOCKED; return drain_all(), SUCCESS; }

// Streams and events.
EXPORT int cuStreamCreate(void **stream, unsigned) { LOCKED; return *stream = new_stream(), SUCCESS; }
EXPORT int cuStreamCreateWithPriority(void **stream, unsigned, int) { LOCKED; return *stream = new_stream(), SUCCESS; }
EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0, SUCCESS; }
EXPORT int cuStreamDestroy_v2(void *stream) { LOCKED; return drain(stream_of(stream)), SUCCESS; }
EXPORT int cuStreamSynchronize(void *stream) {
    LOCKED;
    Stream *it = stream_of(stream);
    return it == legacy() ? drain_all() : drain(it), SUCCESS;
}
EXPORT int cuStreamQuery(void *stream) {
    LOCKED;
    // Who asks again and again gets there.
    Stream *it = stream_of(stream);
    if (it->done < it->pushed) drain_to(it, it->done + 1);
    return it->done < it->pushed ? NOT_READY : SUCCESS;
}
EXPORT int cuStreamIsCapturing(void *, int *status) { return *status = 0, SUCCESS; }
EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    LOCKED;
    Event waited = *(Event *)event;
    if (waited.stream) push(stream_of(stream), [=] { drain_to(waited.stream, waited.at); });
    return SUCCESS;
}
EXPORT int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    LOCKED;
    return push(stream_of(stream), [=] { function(data); }), SUCCESS;
}
EXPORT int cuEventCreate(void **event, unsigned) { return *event = new Event, SUCCESS; }
EXPORT int cuEventDestroy_v2(void *event) { return delete (Event *)event, SUCCESS; }
EXPORT int cuEventRecord(void *event, void *stream) {
    LOCKED;
    Stream *it = stream_of(stream);
    return *(Event *)event = {it, it->pushed}, SUCCESS;
}
EXPORT int cuEventSynchronize(void *event) {
    LOCKED;
    Event *it = (Event *)event;
    if (it->stream) drain_to(it->stream, it->at);
    return SUCCESS;
}
EXPORT int cuEventQuery(void *event) {
    LOCKED;
    Event *it = (Event *)event;
    if (!it->stream || it->stream->done >= it->at) return SUCCESS;
    drain_to(it->stream, it->stream->done + 1);
    return it->stream->done >= it->at ? SUCCESS : NOT_READY;
}
EXPORT int cuEventElapsedTime(float *milliseconds, void *, void *) { return *milliseconds = 0, SUCCESS; }

// Memory.
EXPORT int cuMemAllocAsync(uint64_t *at, size_t bytes, void *stream) { LOCKED; return allocate(at, bytes, stream_of(stream)); }
EXPORT int cuMemAlloc_v2(uint64_t *at, size_t bytes) { LOCKED; return allocate(at, bytes, legacy()); }
EXPORT int cuMemFreeAsync(uint64_t at, void *stream) { LOCKED; return release(at, stream_of(stream)); }
EXPORT int cuMemFree_v2(uint64_t at) { LOCKED; return release(at, legacy()); }
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) {
    LOCKED;
    *total = total_memory();
    return *left = *total - used, SUCCESS;
}
EXPORT int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    LOCKED;
    if (bytes == 0) return refuse("memory of no bytes");
    if (bytes > (size_t)setting("SOFT_CUDA_PINNED", 1L << 30)) return OUT_OF_MEMORY;
    *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(*at, ONES, bytes);
    return pinned_memory[(uintptr_t)*at] = bytes, SUCCESS;
}
EXPORT int cuMemFreeHost(void *at) {
    LOCKED;
    if (!pinned_memory.count((uintptr_t)at)) broken("what is freed is no pinned memory");
    // CUDA waits for the device; what reads it still would read what is not there otherwise.
    drain_all();
    pinned_memory.erase((uintptr_t)at);
    return free(at), SUCCESS;
}
EXPORT int cuMemsetD8Async(uint64_t at, unsigned char byte, size_t bytes, void *stream) {
    LOCKED;
    if (!is_on_device((void *)at, bytes)) return refuse("an address that is in no memory of a device");
    return push(stream_of(stream), [=] { memset((void *)at, byte, bytes); }), SUCCESS;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    LOCKED;
    count(is_pinned(from, bytes) ? "(copy from pinned memory)" : "(copy from the host)");
    if (bytes > 0 && !is_on_device((void *)to, bytes)) return refuse("an address that is in no memory of a device");
    if (is_pinned(from, bytes)) return push(stream_of(stream), [=] { memcpy((void *)to, from, bytes); }), SUCCESS;
    auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    push(stream_of(stream), [=] { memcpy((void *)to, staged->data(), bytes); });
    // Of more than that, CUDA has no copy of its own.
    if (bytes > 64 << 10) drain(stream_of(stream));
    return SUCCESS;
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); }
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    LOCKED;
    count("(copy to the host)");
    if (bytes > 0 && !is_on_device((void *)from, bytes)) return refuse("an address that is in no memory of a device");
    push(stream_of(stream), [=] { memcpy(to, (void *)from, bytes); });
    if (!is_pinned(to, bytes)) drain(stream_of(stream));
    return SUCCESS;
}
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr); }
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    LOCKED;
    count("(copy on a device, or between two)");
    if (bytes > 0 && !(is_on_device((void *)from, bytes) && is_on_device((void *)to, bytes))) return refuse("an address that is in no memory of a device");
    return push(stream_of(stream), [=] { memmove((void *)to, (void *)from, bytes); }), SUCCESS;
}
EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
EXPORT int cuMemcpyPeerAsync(uint64_t to, void *, uint64_t from, void *, size_t bytes, void *stream) { return cuMemcpyDtoDAsync_v2(to, from, bytes, stream); }

// Whether a kernel has met memory that nobody has written, for who asks with SOFT_CUDA_CHECK=1: an argument that is an address in memory which has
// ones in it still, 8 bytes long.
static void check_written(const std::string &kernel, size_t argument, uint64_t address) {
    auto found = device_memory.upper_bound(address);
    if (found == device_memory.begin()) return;
    --found;
    if (address >= found->first + found->second.bytes) return;
    const uint64_t *words = (const uint64_t *)found->first;
    size_t ones = 0, all = found->second.bytes / 8;
    for (size_t at = 0; at < all; at++) ones += words[at] == ~0ull;
    if (ones > 0) fprintf(stderr, "soft CUDA: %s, argument %zu: %zu of %zu words are not written%s\n", kernel.c_str(), argument, ones, all, found->second.freed ? " (freed since)" : "");
}

// Kernels.
EXPORT int cuModuleLoadData(void **module, const void *image) {
    LOCKED;
    const char *text = (const char *)image;
    if (strncmp(text, IMAGE, strlen(IMAGE)) != 0) return INVALID_IMAGE;
    std::string library(text + strlen(IMAGE));
    while (!library.empty() && (library.back() == '\n' || library.back() == ' ')) library.pop_back();
    *module = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "soft CUDA: %s\n", dlerror());
    return *module ? SUCCESS : INVALID_IMAGE;
}
EXPORT int cuModuleUnload(void *) { return SUCCESS; }
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    LOCKED;
    std::string call = std::string("soft_call_") + name, sizes = std::string("soft_sizes_") + name;
    Kernel found = {(void (*)(void **))dlsym(module, call.c_str()), nullptr, (const unsigned *)dlsym(module, sizes.c_str()), name};
    found.launch = (void (*)(void (*)(void **), void **, const unsigned *, const unsigned *))dlsym(module, "soft_launch");
    if (!found.call || !found.sizes || !found.launch) return NOT_FOUND;
    return *function = new Kernel(found), SUCCESS;
}
EXPORT int cuFuncSetAttribute(void *, int, int) { return SUCCESS; }
EXPORT int cuFuncGetAttribute(int *value, int, void *) { return *value = 0, SUCCESS; }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int, size_t) { return *blocks = 2, SUCCESS; }
EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **) {
    LOCKED;
    Kernel kernel = *(Kernel *)function;
    uint64_t threads = (uint64_t)bx * by * bz;
    if (!gx || !gy || !gz || threads == 0 || threads > 1024 || gy > 65535 || gz > 65535 || shared > 227 << 10) return refuse("a launch without blocks or threads, or with too many");
    std::vector<std::vector<char>> values;
    for (unsigned at = 0; at < kernel.sizes[0]; at++)
        values.emplace_back((char *)parameters[at], (char *)parameters[at] + kernel.sizes[at + 1]);
    push(stream_of(stream), [=] {
        std::vector<void *> arguments;
        for (auto &value : values) arguments.push_back((void *)value.data());
        const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
        kernel.launch(kernel.call, arguments.data(), grid, block);
        static bool checks = getenv("SOFT_CUDA_CHECK") != nullptr;
        for (size_t at = 0; checks && at < values.size(); at++)
            if (values[at].size() == 8) check_written(kernel.name, at, *(uint64_t *)values[at].data());
    });
    count(kernel.name);
    return SUCCESS;
}

// Errors.
static const char *name_of(int error) {
    switch (error) {
        case SUCCESS: return "CUDA_SUCCESS";
        case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
        case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
        case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
        case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
        case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
        case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
        case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
        case NOT_READY: return "CUDA_ERROR_NOT_READY";
        default: return "CUDA_ERROR_NOT_SUPPORTED";
    }
}
EXPORT int cuGetErrorName(int error, const char **text) { return *text = name_of(error), SUCCESS; }
EXPORT int cuGetErrorString(int error, const char **text) { return *text = name_of(error), SUCCESS; }

bool compile(const char *source, const char *library, char *said, size_t room) {
    // Tests tell whether NVRTC's lack is survived.
    if (setting("SOFT_CUDA_NVRTC", 1) == 0) return snprintf(said, room, "there is no compiler"), false;
    std::string command = std::string(SOFT_CUDA_FOLDER "/compile '") + source + "' '" + library + "' 2>&1";
    FILE *output = popen(command.c_str(), "r");
    if (!output) return false;
    size_t length = fread(said, 1, room - 1, output);
    said[length] = 0;
    return pclose(output) == 0;
}
