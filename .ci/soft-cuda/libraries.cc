// What candle and this project call of CUDA's libraries: cuBLAS, cuRAND, NVRTC and NCCL.
#include "driver.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

// cuBLAS. Matrices are column by column.
struct Blas {
    Stream *stream;
};
struct Gemm {
    bool ta, tb;
    int m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    int batch;
};
template <class T> static void multiply(const Gemm &g, T alpha, T beta) {
    std::vector<T> column(g.m);
    for (int at = 0; at < g.batch; at++) {
        const T *a = (const T *)g.a + at * g.stride_a, *b = (const T *)g.b + at * g.stride_b;
        T *c = (T *)g.c + at * g.stride_c;
        for (int j = 0; j < g.n; j++) {
            for (auto &sum : column) sum = 0;
            if (g.ta) {
                for (int i = 0; i < g.m; i++)
                    for (int k = 0; k < g.k; k++) column[i] += a[k + i * g.lda] * (g.tb ? b[j + k * g.ldb] : b[k + j * g.ldb]);
            } else {
                for (int k = 0; k < g.k; k++) {
                    T with = g.tb ? b[j + k * g.ldb] : b[k + j * g.ldb];
                    const T *of = a + k * g.lda;
                    for (int i = 0; i < g.m; i++) column[i] += of[i] * with;
                }
            }
            for (int i = 0; i < g.m; i++) c[i + j * g.ldc] = alpha * column[i] + (beta == 0 ? 0 : beta * c[i + j * g.ldc]);
        }
    }
}
// Whether both ends of a matrix are in memory of a device.
static bool covers(const void *at, int rows, int columns, int64_t leading, int64_t stride, int batch, size_t size) {
    if (rows == 0 || columns == 0 || batch == 0) return true;
    return is_on_device(at, ((batch - 1) * stride + (columns - 1) * leading + rows) * size);
}
template <class T> static int gemm(void *handle, const Gemm &g, T alpha, T beta) {
    LOCKED;
    bool there = covers(g.a, g.ta ? g.k : g.m, g.ta ? g.m : g.k, g.lda, g.stride_a, g.batch, sizeof(T)) &&
                 covers(g.b, g.tb ? g.n : g.k, g.tb ? g.k : g.n, g.ldb, g.stride_b, g.batch, sizeof(T)) &&
                 covers(g.c, g.m, g.n, g.ldc, g.stride_c, g.batch, sizeof(T));
    if (!there || g.lda < (g.ta ? g.k : g.m) || g.ldb < (g.tb ? g.n : g.k) || g.ldc < g.m) return 7;  // invalid value
    count("(product)");
    return push(((Blas *)handle)->stream, [=] { multiply(g, alpha, beta); }), 0;
}
EXPORT int cublasCreate_v2(void **handle) { return *handle = new Blas{stream_of(nullptr)}, 0; }
EXPORT int cublasDestroy_v2(void *handle) { return delete (Blas *)handle, 0; }
EXPORT int cublasSetStream_v2(void *handle, void *stream) { LOCKED; return ((Blas *)handle)->stream = stream_of(stream), 0; }
EXPORT int cublasSetPointerMode_v2(void *, int mode) { return mode == 0 ? 0 : 15; }
EXPORT int cublasSetWorkspace_v2(void *, void *, size_t) { return 0; }
EXPORT int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda, long long stride_a,
                                      const void *b, int type_b, int ldb, long long stride_b, const void *beta, void *c, int type_c, int ldc, long long stride_c,
                                      int batch, int, int) {
    Gemm g = {ta != 0, tb != 0, m, n, k, a, b, c, lda, ldb, ldc, stride_a, stride_b, stride_c, batch};
    if (type_a != type_b || type_a != type_c) return 15;  // not supported
    if (type_a == 0) return gemm(handle, g, *(const float *)alpha, *(const float *)beta);
    if (type_a == 1) return gemm(handle, g, *(const double *)alpha, *(const double *)beta);
    return 15;
}
EXPORT int cublasDgemmStridedBatched(void *handle, int ta, int tb, int m, int n, int k, const double *alpha, const double *a, int lda, long long stride_a, const double *b,
                                     int ldb, long long stride_b, const double *beta, double *c, int ldc, long long stride_c, int batch) {
    return gemm(handle, Gemm{ta != 0, tb != 0, m, n, k, a, b, c, lda, ldb, ldc, stride_a, stride_b, stride_c, batch}, *alpha, *beta);
}

// cuRAND. Not its numbers.
struct Random {
    Stream *stream;
    std::shared_ptr<uint64_t> state;
};
static double uniform(uint64_t &state) {  // in (0, 1]
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return ((z ^ (z >> 31)) >> 11) * 0x1p-53 + 0x1p-53;
}
template <class T, class F> static int generate(void *generator, T *at, size_t count, F next) {
    LOCKED;
    Random *random = (Random *)generator;
    if (!is_on_device(at, count * sizeof(T))) return 105;
    auto state = random->state;
    return push(random->stream, [=] { for (size_t each = 0; each < count; each++) at[each] = (T)next(*state); }), 0;
}
static auto normal(double mean, double deviation) {
    return [=](uint64_t &state) { return mean + deviation * sqrt(-2 * log(uniform(state))) * cos(6.283185307179586 * uniform(state)); };
}
EXPORT int curandCreateGenerator(void **generator, int) { return *generator = new Random{stream_of(nullptr), std::make_shared<uint64_t>(0)}, 0; }
EXPORT int curandDestroyGenerator(void *generator) { return delete (Random *)generator, 0; }
EXPORT int curandSetPseudoRandomGeneratorSeed(void *generator, unsigned long long seed) { return *((Random *)generator)->state = seed, 0; }
EXPORT int curandSetGeneratorOffset(void *, unsigned long long) { return 0; }
EXPORT int curandSetStream(void *generator, void *stream) { LOCKED; return ((Random *)generator)->stream = stream_of(stream), 0; }
EXPORT int curandGenerateUniform(void *generator, float *at, size_t count) { return generate(generator, at, count, uniform); }
EXPORT int curandGenerateUniformDouble(void *generator, double *at, size_t count) { return generate(generator, at, count, uniform); }
EXPORT int curandGenerateNormal(void *generator, float *at, size_t count, float mean, float deviation) { return generate(generator, at, count, normal(mean, deviation)); }
EXPORT int curandGenerateNormalDouble(void *generator, double *at, size_t count, double mean, double deviation) { return generate(generator, at, count, normal(mean, deviation)); }

// NVRTC.
struct Program {
    std::string source, image, said;
};
EXPORT int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
EXPORT const char *nvrtcGetErrorString(int error) { return error == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION"; }
EXPORT int nvrtcCreateProgram(void **program, const char *source, const char *, int, const char *const *, const char *const *) {
    return *program = new Program{source, "", ""}, 0;
}
EXPORT int nvrtcDestroyProgram(void **program) { return delete (Program *)*program, *program = nullptr, 0; }
EXPORT int nvrtcCompileProgram(void *program, int, const char *const *) {
    Program *it = (Program *)program;
    char folder[] = "/tmp/soft-cuda-XXXXXX";
    if (!mkdtemp(folder)) return 6;
    // Libraries are there until the program ends.
    static std::vector<std::string> folders;
    if (folders.empty())
        atexit([] {
            for (auto &each : folders) {
                for (const char *file : {"/program.cu", "/program.so"}) unlink((each + file).c_str());
                rmdir(each.c_str());
            }
        });
    {
        LOCKED;
        folders.push_back(folder);
    }
    std::string source = std::string(folder) + "/program.cu", library = std::string(folder) + "/program.so";
    FILE *file = fopen(source.c_str(), "w");
    if (!file) return 6;
    fwrite(it->source.data(), 1, it->source.size(), file);
    fclose(file);
    std::vector<char> said(64 << 10);
    bool compiled = compile(source.c_str(), library.c_str(), said.data(), said.size());
    it->said = said.data();
    it->image = IMAGE + library;
    return compiled ? 0 : 6;
}
EXPORT int nvrtcGetPTXSize(void *program, size_t *size) { return *size = ((Program *)program)->image.size() + 1, 0; }
EXPORT int nvrtcGetPTX(void *program, char *to) { return strcpy(to, ((Program *)program)->image.c_str()), 0; }
EXPORT int nvrtcGetProgramLogSize(void *program, size_t *size) { return *size = ((Program *)program)->said.size() + 1, 0; }
EXPORT int nvrtcGetProgramLog(void *program, char *to) { return strcpy(to, ((Program *)program)->said.c_str()), 0; }

// NCCL, of one process. All that takes time is done while somebody asks whether it is: calls that don't wait, alone.
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_IN_PROGRESS = 7 };
const int QUESTIONS = 3;  // so often the answer is that it isn't done
// With SOFT_CUDA_NCCL_HANGS=n the answer to all groups of calls behind n is that, for ever. The first group links.
struct Part {
    const void *from;
    void *to;
    size_t count;
    int type;
    Stream *stream;
};
struct Communicator;
struct Clique {
    std::vector<Communicator *> ranks;
    std::vector<std::vector<Part>> waiting;  // of each rank, in its order
};
struct Communicator {
    std::shared_ptr<Clique> clique;
    int rank, device, questions;
};
struct UniqueId {
    char internal[128];
};
struct Config {  // of 2.14
    size_t size;
    unsigned magic, version;
    int blocking;
};
extern "C" int cuCtxGetDevice(int *device);
static std::map<std::string, std::weak_ptr<Clique>> cliques;  // by their names
static thread_local int groups = 0;
static thread_local std::vector<Communicator *> called;  // in this group
template <class T> static void add_up(const std::vector<Part> &parts) {
    std::vector<T> sum((const T *)parts[0].from, (const T *)parts[0].from + parts[0].count);
    for (size_t rank = 1; rank < parts.size(); rank++)
        for (size_t at = 0; at < sum.size(); at++) sum[at] += ((const T *)parts[rank].from)[at];
    for (auto &part : parts) memcpy(part.to, sum.data(), sum.size() * sizeof(T));
}
static size_t size_of(int type) {
    switch (type) {
        case 0: case 1: return 1;
        case 2: case 3: case 7: return 4;
        case 4: case 5: case 8: return 8;
        default: return 0;
    }
}
static void sum_of(const std::vector<Part> &parts) {
    switch (parts[0].type) {
        case 0: return add_up<int8_t>(parts);
        case 1: return add_up<uint8_t>(parts);
        case 2: return add_up<int32_t>(parts);
        case 3: return add_up<uint32_t>(parts);
        case 4: return add_up<int64_t>(parts);
        case 5: return add_up<uint64_t>(parts);
        case 7: return add_up<float>(parts);
        case 8: return add_up<double>(parts);
    }
}
EXPORT int ncclGetVersion(int *version) { return *version = 22704, 0; }
EXPORT const char *ncclGetErrorString(int error) {
    switch (error) {
        case 0: return "no error";
        case NCCL_INVALID_ARGUMENT: return "invalid argument";
        case NCCL_INVALID_USAGE: return "invalid usage";
        default: return "unknown result code";
    }
}
EXPORT int ncclGetUniqueId(UniqueId *id) {
    LOCKED;
    static uint64_t made = 0;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "clique %llu", (unsigned long long)++made);
    return 0;
}
EXPORT int ncclCommInitRankConfig(void **to, int size, UniqueId id, int rank, Config *config) {
    LOCKED;
    int device;
    if (config->size < sizeof *config || config->magic != 0xcafebeef || config->version < 21400 || config->blocking != 0) return NCCL_INVALID_ARGUMENT;
    if (groups == 0 || rank < 0 || rank >= size || cuCtxGetDevice(&device) != 0) return NCCL_INVALID_USAGE;
    auto &known = cliques[std::string(id.internal, sizeof id.internal)];
    auto clique = known.lock();
    if (!clique) {
        known = clique = std::make_shared<Clique>();
        clique->ranks.resize(size);
        clique->waiting.resize(size);
    }
    if ((int)clique->ranks.size() != size || clique->ranks[rank]) return NCCL_INVALID_ARGUMENT;
    for (Communicator *other : clique->ranks)
        if (other && other->device == device) return NCCL_INVALID_USAGE;
    clique->ranks[rank] = new Communicator{clique, rank, device, QUESTIONS};
    called.push_back(clique->ranks[rank]);
    *to = clique->ranks[rank];
    return 0;
}
// Waits until all are given up, as NCCL may; not for ever, so that a test that gives them up one after another ends, late.
EXPORT int ncclCommAbort(void *communicator) {
    std::shared_ptr<Clique> clique;
    {
        LOCKED;
        Communicator *it = (Communicator *)communicator;
        clique = it->clique;
        clique->ranks[it->rank] = nullptr;
        clique->waiting[it->rank].clear();
        delete it;
    }
    for (int asked = 0; asked < 10000; asked++) {
        {
            LOCKED;
            if (std::all_of(clique->ranks.begin(), clique->ranks.end(), [](Communicator *rank) { return !rank; })) break;
        }
        usleep(1000);
    }
    return 0;
}
// Puts into the queues what all have called for.
static void put(Clique &clique) {
    for (;;) {
        std::vector<Part> parts;
        std::vector<Stream *> streams;
        for (auto &waiting : clique.waiting) {
            if (waiting.empty()) return;
            parts.push_back(waiting.front());
            streams.push_back(waiting.front().stream);
        }
        for (auto &waiting : clique.waiting) waiting.erase(waiting.begin());
        meet(streams, [=] { sum_of(parts); });
    }
}
EXPORT int ncclCommGetAsyncError(void *communicator, int *state) {
    LOCKED;
    Communicator *it = (Communicator *)communicator;
    Clique &clique = *it->clique;
    bool all = true;
    for (Communicator *rank : clique.ranks) all = all && rank;
    *state = it->questions > 0 || !all ? NCCL_IN_PROGRESS : 0;
    if (it->questions == 0 || --it->questions > 0) return 0;
    for (Communicator *rank : clique.ranks) all = all && rank->questions == 0;
    if (all) put(clique);
    return 0;
}
EXPORT int ncclGroupStart() { return groups++, 0; }
EXPORT int ncclGroupEnd() {
    LOCKED;
    if (groups == 0) return NCCL_INVALID_USAGE;
    if (--groups > 0) return 0;
    static const char *hangs = getenv("SOFT_CUDA_NCCL_HANGS");
    static int ended = 0;
    bool hanging = ++ended > (hangs ? atoi(hangs) : INT_MAX - 1);
    for (Communicator *it : called) it->questions = hanging ? INT_MAX : QUESTIONS;
    called.clear();
    return NCCL_IN_PROGRESS;
}
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *communicator, void *stream) {
    LOCKED;
    Communicator *it = (Communicator *)communicator;
    size_t bytes = count * size_of(type);
    if (operation != 0 || bytes == 0 || !is_on_device(from, bytes) || !is_on_device(to, bytes)) return NCCL_INVALID_ARGUMENT;
    if (groups == 0 || it->questions > 0) return NCCL_INVALID_USAGE;
    it->clique->waiting[it->rank].push_back({from, to, count, type, stream_of(stream)});
    called.push_back(it);
    return 0;
}
