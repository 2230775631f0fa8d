//! The calls to MPI, whose results are checked. This is the only file with `unsafe` code.
//!
//! MPI is initialized with `MPI_THREAD_SERIALIZED`: any thread may call it, but only one at a time. All calls are
//! methods that take the [`Library`] by `&mut`, and a process has only one, so the compiler ensures this. rsmpi's own
//! methods ignore the results of calls, so its bindings are used instead.

use crate::Error;
use crate::memory::Memory;
use bytes::Bytes;
use distribute_net::Number;
use mpi::environment::{self, Threading, Universe};
use mpi::ffi::{self, MPI_Comm, MPI_Datatype, MPI_Request};
use std::ffi::c_int;
use std::mem::{self, ManuallyDrop, MaybeUninit, take};

/// The tag of all messages. Messages between two processes are received in the order in which they were sent.
const TAG: c_int = 0;

/// The MPI library, after `MPI_Init_thread`.
pub(crate) struct Library {
    /// The guard of rsmpi, which finalizes MPI when it is dropped. Only [`finalize`](Self::finalize) drops it: after
    /// the failure of another process, this process must exit without finalizing MPI.
    universe: ManuallyDrop<Universe>,
    /// The communicator of this crate's messages, separate from the program's.
    messages: MPI_Comm,
    /// The communicator of this crate's reductions, separate from the program's.
    reductions: MPI_Comm,
    rank: usize,
    workers: usize,
}

// SAFETY: MPI provides MPI_THREAD_SERIALIZED, as `start` has checked: any thread may call it. Handles are
// names.
unsafe impl Send for Library {}

/// A call to MPI that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text}")]
pub struct CallError {
    /// The name of the MPI function that has failed.
    pub call: &'static str,
    /// MPI's description of the error.
    pub text: String,
}

/// A running operation of MPI, with the memory that it reads and writes. If a request is dropped before the operation
/// has completed, its memory is never freed.
pub(crate) struct Request {
    raw: MPI_Request,
    from: Bytes,
    into: Memory,
    ended: bool,
}

// SAFETY: same as `Library`, which every operation on it needs.
unsafe impl Send for Request {}

impl Library {
    /// Initializes MPI, and waits until all processes have initialized it.
    ///
    /// # Errors
    /// - [`Error::AlreadyInitialized`]: MPI was already initialized in this process.
    /// - [`Error::Threads`]: the MPI library does not support calls from several threads.
    /// - [`Error::Call`]: a call to MPI has failed.
    pub fn start() -> Result<Self, Error> {
        let (universe, threads) =
            environment::initialize_with_threading(Threading::Serialized).ok_or(Error::AlreadyInitialized)?;
        if threads < Threading::Serialized {
            return Err(Error::Threads);
        }
        // SAFETY: MPI is initialized, and no other thread has a handle to call it by.
        let (messages, reductions) = unsafe { (duplicate()?, duplicate()?) };
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid, and both destinations are writable.
        unsafe {
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(messages, &mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(messages, &mut size))?;
        }
        let universe = ManuallyDrop::new(universe);
        Ok(Self { universe, messages, reductions, rank: index(rank), workers: index(size) })
    }

    /// Finalizes MPI, which waits for all processes.
    pub fn finalize(mut self) {
        // SAFETY: it is dropped once, because this takes `self`.
        unsafe { ManuallyDrop::drop(&mut self.universe) }
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Starts to send bytes to process `to`.
    pub fn send(&mut self, to: usize, bytes: Bytes) -> Result<Request, CallError> {
        const CALL: &str = "MPI_Isend";
        let (to, count) = (number(CALL, to)?, number(CALL, bytes.len())?);
        Request::begin(CALL, bytes, Memory::default(), |from, _, request| {
            // SAFETY: `from` has `count` bytes, which stay valid and are not written until the request has
            // completed.
            unsafe { ffi::MPI_Isend(from.cast(), count, byte(), to, TAG, self.messages, request) }
        })
    }

    /// Starts to receive the next message of a process. Returns `None` if none has arrived.
    pub fn receive(&mut self, from: usize) -> Result<Option<Request>, CallError> {
        let from = number("MPI_Improbe", from)?;
        let (mut flag, mut count) = (0, 0);
        let (mut message, mut status) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: all pointers are to values of their types. MPI writes message and status before it sets the
        // flag.
        let found = unsafe {
            let (message, status) = (message.as_mut_ptr(), status.as_mut_ptr());
            ffi::MPI_Improbe(from, TAG, self.messages, &mut flag, message, status)
        };
        check("MPI_Improbe", found)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: the flag is set, so there is a status.
        let counted = unsafe { ffi::MPI_Get_count(status.as_ptr(), byte(), &mut count) };
        check("MPI_Get_count", counted)?;
        let into = Memory::new(index(count));
        let request = Request::begin("MPI_Imrecv", Bytes::new(), into, |_, into, request| {
            // SAFETY: `into` has `count` bytes, which are not used otherwise until the request has completed.
            // The message was matched.
            unsafe { ffi::MPI_Imrecv(into.cast(), count, byte(), message.as_mut_ptr(), request) }
        });
        request.map(Some)
    }

    /// Starts an all-gather: every process receives the bytes of all processes. All processes must contribute the same
    /// number of bytes.
    pub fn gather(&mut self, mine: Bytes) -> Result<Request, CallError> {
        const CALL: &str = "MPI_Iallgather";
        let (count, into) = (number(CALL, mine.len())?, Memory::new(mine.len() * self.workers));
        Request::begin(CALL, mine, into, |from, into, request| {
            let (from, into) = (from.cast(), into.cast());
            // SAFETY: `from` has `count` bytes, and `into` has `count` bytes for each process, as long as the
            // request exists.
            unsafe { ffi::MPI_Iallgather(from, count, byte(), into, count, byte(), self.reductions, request) }
        })
    }

    /// Starts to sum the vectors of all processes. `vector` is this process's, and all must have the same length.
    pub fn sum(&mut self, vector: Bytes, numbers: Number) -> Result<Request, CallError> {
        const CALL: &str = "MPI_Iallreduce";
        let (width, kind) = match numbers {
            // SAFETY: constants of the library.
            Number::F32 => (size_of::<f32>(), unsafe { ffi::RSMPI_FLOAT }),
            // SAFETY: same as above.
            Number::F64 => (size_of::<f64>(), unsafe { ffi::RSMPI_DOUBLE }),
        };
        let count = number(CALL, vector.len() / width)?;
        let into = Memory::new(vector.len());
        let aligned = vector.as_ptr().align_offset(width) == 0;
        let vector = if aligned { vector } else { Memory::of(&vector).into() };
        Request::begin(CALL, vector, into, |from, into, request| {
            let (from, into) = (from.cast(), into.cast());
            // SAFETY: both have `count` numbers, aligned for their type, as long as the request exists.
            unsafe { ffi::MPI_Iallreduce(from, into, count, kind, ffi::RSMPI_SUM, self.reductions, request) }
        })
    }

    /// Returns whether an operation has completed, and lets MPI continue it.
    pub fn test(&mut self, request: &mut Request) -> Result<bool, CallError> {
        if !request.ended {
            let mut flag = 0;
            // SAFETY: the request was started and has not completed. No status is requested.
            let tested = unsafe { ffi::MPI_Test(&mut request.raw, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
            check("MPI_Test", tested)?;
            request.ended = flag != 0;
        }
        Ok(request.ended)
    }
}

impl Request {
    fn begin(
        call: &'static str,
        from: Bytes,
        mut into: Memory,
        begin: impl FnOnce(*const u8, *mut u8, *mut MPI_Request) -> c_int,
    ) -> Result<Self, CallError> {
        let mut raw = MaybeUninit::uninit();
        check(call, begin(from.as_ptr(), into.as_mut_ptr(), raw.as_mut_ptr()))?;
        // SAFETY: MPI has written it, because the call was a success.
        Ok(Self { raw: unsafe { raw.assume_init() }, from, into, ended: false })
    }

    /// Returns the received bytes; `None` if the operation has not completed.
    pub fn received(mut self) -> Option<Bytes> {
        self.ended.then(|| take(&mut self.into).into())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.ended {
            mem::forget((take(&mut self.from), take(&mut self.into)));
        }
    }
}

/// Duplicates the communicator of all processes, and makes it return errors.
///
/// # Safety
/// MPI must be initialized, and no other thread may call it.
unsafe fn duplicate() -> Result<MPI_Comm, CallError> {
    // SAFETY: by the contract. The first call writes the handle that the second one takes.
    unsafe {
        let mut duplicate = ffi::RSMPI_COMM_NULL;
        check("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut duplicate))?;
        let set = ffi::MPI_Comm_set_errhandler(duplicate, ffi::RSMPI_ERRORS_RETURN);
        check("MPI_Comm_set_errhandler", set)?;
        Ok(duplicate)
    }
}

fn byte() -> MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// Converts a number from MPI, which is never negative.
fn index(number: c_int) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Converts a number to MPI's type. Returns an error of the MPI function `call` if the number is too large.
fn number(call: &'static str, number: usize) -> Result<c_int, CallError> {
    number.try_into().map_err(|_| CallError { call, text: format!("{number} is too large for MPI") })
}

fn check(call: &'static str, code: c_int) -> Result<(), CallError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the text has the maximum size of MPI's messages.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    if told != ffi::MPI_SUCCESS as c_int {
        return Err(CallError { call, text: format!("error {code}") });
    }
    text.truncate(index(length));
    Err(CallError { call, text: String::from_utf8_lossy(&text).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::on_ranks;

    #[test]
    fn a_call_that_fails_is_an_error_and_the_process_lives() {
        on_ranks("library::tests::a_call_that_fails_is_an_error_and_the_process_lives", &[2], || {
            let mut library = Library::start().unwrap();
            let error = library.send(99, Bytes::from_static(b"to nobody")).err().unwrap();
            assert_eq!(error.to_string(), "MPI_Isend: MPI_ERR_RANK: invalid rank");
            let error = library.receive(usize::MAX).err().unwrap();
            assert_eq!(error.to_string(), format!("MPI_Improbe: {} is too large for MPI", usize::MAX));
            assert!(matches!(Library::start(), Err(Error::AlreadyInitialized)));
            library.finalize();
        });
    }
}
