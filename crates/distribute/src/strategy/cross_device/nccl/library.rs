//! NCCL's functions, found in its library when they are first asked for. cudarc would link them: a program would then not start without.

use super::fault::{CallError, Fault};
use libloading::{Library, Symbol};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// The earliest release that will do, and its number: that of the crate `distribute-nccl`.
const LEAST: (&str, c_int) = ("2.14", 21400);

/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclComm_t`.
type Communicator = *mut c_void;

/// NCCL's functions, by its header. A result that is not 0 is an error.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    comm_init_all: unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(Communicator) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: AllReduce,
}

/// From where to where, how many elements, of which type, the operation, the communicator, and CUDA's stream.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// NCCL.
pub(super) struct Nccl {
    functions: Functions,
    /// Has the functions.
    _library: Library,
}

/// One communicator for each GPU of a set.
#[derive(Debug)]
pub(super) struct Communicators {
    gpus: Vec<usize>,
    all: Vec<Communicator>,
}

// SAFETY: NCCL lets any thread call for a communicator, one at a time. Whoever calls for these holds the lock of all sets.
unsafe impl Send for Communicators {}

impl Communicators {
    /// Of which GPUs, in the order of replicas.
    pub(super) fn gpus(&self) -> &[usize] {
        &self.gpus
    }
}

/// Two vectors on a GPU, of which one gets the sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub(super) from: *const c_void,
    pub(super) to: *mut c_void,
    /// How many elements each has.
    pub(super) count: usize,
    /// NCCL's number for their type.
    pub(super) number: c_int,
}

impl Nccl {
    /// The library of this file.
    ///
    /// # Errors
    /// [`Fault::Missing`] and [`Fault::TooOld`].
    pub(super) fn load(file: &str) -> Result<Self, Fault> {
        let nccl = Self::open(file).map_err(|reason| {
            let searched = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            Fault::Missing { reason, searched: if searched.is_empty() { "not set".into() } else { searched } }
        })?;
        let mut release = 0;
        // SAFETY: the number lives during the call.
        let asked = unsafe { (nccl.functions.get_version)(&raw mut release) };
        nccl.done("ncclGetVersion", asked).map_err(Fault::Link)?;
        if release < LEAST.1 {
            return Err(Fault::TooOld { found: text(release), least: LEAST.0 });
        }
        Ok(nccl)
    }

    fn open(file: &str) -> Result<Self, String> {
        // What the system's loader said is its source.
        let reason =
            |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: what NCCL does when it is loaded is safe; it is what any program that is linked to it does.
        let library = unsafe { Library::new(file) }.map_err(reason)?;
        /// A function, as long as the library is there.
        ///
        /// # Safety
        /// It has to be of the type.
        unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F, libloading::Error> {
            // SAFETY: the caller's promise.
            let symbol: Symbol<'_, F> = unsafe { library.get(name.to_bytes_with_nul()) }?;
            Ok(*symbol)
        }
        let functions = || {
            // SAFETY: so NCCL's header declares them, since release 2.4.
            unsafe {
                Ok(Functions {
                    get_version: find(&library, c"ncclGetVersion")?,
                    get_error_string: find(&library, c"ncclGetErrorString")?,
                    comm_init_all: find(&library, c"ncclCommInitAll")?,
                    comm_abort: find(&library, c"ncclCommAbort")?,
                    group_start: find(&library, c"ncclGroupStart")?,
                    group_end: find(&library, c"ncclGroupEnd")?,
                    all_reduce: find(&library, c"ncclAllReduce")?,
                })
            }
        };
        let functions = functions().map_err(reason)?;
        Ok(Self { functions, _library: library })
    }

    /// Communicators of GPUs, by CUDA's numbers.
    pub(super) fn link(&self, gpus: &[usize]) -> Result<Communicators, CallError> {
        const CALL: &str = "ncclCommInitAll";
        let number = |number: usize| {
            c_int::try_from(number).map_err(|_| CallError { call: CALL, reason: format!("GPU {number}") })
        };
        let numbers = gpus.iter().copied().map(number).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<Communicator> = vec![ptr::null_mut(); numbers.len()];
        // SAFETY: there are as many communicators and numbers of GPUs as are told, and they live during the call.
        let linked = unsafe {
            (self.functions.comm_init_all)(all.as_mut_ptr(), number(numbers.len())?, numbers.as_ptr())
        };
        self.done(CALL, linked)?;
        Ok(Communicators { gpus: gpus.to_vec(), all })
    }

    /// Begins a group of calls, of this thread.
    pub(super) fn start(&self) -> Result<(), CallError> {
        // SAFETY: it takes nothing.
        self.done("ncclGroupStart", unsafe { (self.functions.group_start)() })
    }

    /// Ends the group.
    pub(super) fn end(&self) -> Result<(), CallError> {
        // SAFETY: it takes nothing; what the group's calls were given is there, see `all_reduce`.
        self.done("ncclGroupEnd", unsafe { (self.functions.group_end)() })
    }

    /// Calls for one replica's part of a sum, in the group that has begun.
    ///
    /// # Safety
    /// The communicators are of this library. The vectors are on this replica's GPU and stay until the stream is through with the sum, or the
    /// communicators are given up; those of all replicas have the same number of elements, of the same type. The stream is of that GPU.
    pub(super) unsafe fn all_reduce(
        &self,
        communicators: &Communicators,
        replica: usize,
        vectors: Vectors,
        stream: *mut c_void,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclAllReduce";
        let Some(communicator) = communicators.all.get(replica).copied() else {
            return Err(CallError { call: CALL, reason: format!("replica {replica} has no communicator") });
        };
        let Vectors { from, to, count, number } = vectors;
        // SAFETY: the caller's promise, and the communicator has not been given up, since that takes it.
        self.done(CALL, unsafe {
            (self.functions.all_reduce)(from, to, count, number, SUM, communicator, stream)
        })
    }

    /// Gives up communicators and what they are doing.
    pub(super) fn abort(&self, communicators: Communicators) {
        for communicator in communicators.all {
            // SAFETY: it was made by NCCL, and nobody has it any more. Where that fails, there is nothing left to do about it.
            let _ = unsafe { (self.functions.comm_abort)(communicator) };
        }
    }

    fn done(&self, call: &'static str, result: c_int) -> Result<(), CallError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: NCCL gives text that lives as long as the library, or null.
        let text = unsafe {
            let text = (self.functions.get_error_string)(result);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(CallError { call, reason: text.unwrap_or_else(|| format!("ncclResult_t {result}")) })
    }
}

/// A release as NVIDIA writes it: 2.14.3, of 21403; releases before 2.9 have a digit less.
fn text(release: c_int) -> String {
    let (major, minor) = if release < 10_000 {
        (release / 1000, release / 100 % 10)
    } else {
        (release / 10_000, release / 100 % 100)
    };
    format!("{major}.{minor}.{}", release % 100)
}

#[cfg(test)]
mod tests;
