#pragma once
#define CUDA_VERSION 10000
