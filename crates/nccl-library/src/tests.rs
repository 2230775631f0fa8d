use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_not_nccl_is_missing() {
    // The C library has none of NCCL's functions.
    let fault = Nccl::load("libc.so.6").err().unwrap();
    assert!(fault.to_string().contains("ncclGetVersion"), "{fault}");
}

#[test]
fn releases_are_written_as_nvidia_does() {
    assert_eq!([21403, 22703, 2708].map(release_text), ["2.14.3", "2.27.3", "2.7.8"]);
}

/// Compiles a replacement for NCCL into `folder`. Returns `None` if there is no `rustc`.
fn played(folder: &Path, release: Option<&str>) -> Option<PathBuf> {
    let file = folder.join(format!("libnccl-{}.so", release.unwrap_or("played")));
    let beside = Path::new(env!("CARGO")).with_file_name("rustc");
    let rustc = if beside.exists() { beside } else { "rustc".into() };
    let mut command = Command::new(rustc);
    command.args(["--edition=2024", "--crate-type=cdylib", "-Cprefer-dynamic=no", "-o"]).arg(&file);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/played/libnccl.rs"));
    command.env_remove("RUSTFLAGS");
    if let Some(release) = release {
        command.env("PLAYED_RELEASE", release);
    }
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("rustc: {error}"),
    }
}

/// The functions that control the replacement, in addition to NCCL's own.
struct Behind {
    /// Sets the number of polls that each later call needs, and its final result. Returns the number of communicators.
    played: Symbol<'static, extern "C" fn(c_int, c_int) -> c_int>,
    /// Sets the GPU of this thread.
    gpu: Symbol<'static, extern "C" fn(c_int)>,
}

impl Behind {
    fn of(file: &Path) -> Self {
        // SAFETY: tests/played/libnccl.rs declares them with these types. The library stays loaded.
        unsafe {
            let library: &Library = Box::leak(Box::new(Library::new(file).unwrap()));
            Self { played: library.get(b"played").unwrap(), gpu: library.get(b"played_gpu").unwrap() }
        }
    }

    fn bind(&self, gpu: usize) -> Result<(), CallError> {
        (self.gpu)(gpu.try_into().unwrap());
        Ok(())
    }
}

/// Polls until no operation is in progress. Returns the number of polls that found one.
fn questions(nccl: &Nccl, all: &Communicators) -> usize {
    (0..).take_while(|_| !nccl.busy(all, "played").unwrap().is_empty()).count()
}

/// Adds one vector of each replica to a sum, on the stream of its GPU.
fn add<T>(
    nccl: &Nccl,
    all: &Communicators,
    number: c_int,
    vectors: &mut [(Vec<T>, Vec<T>)],
) -> Vec<Result<(), CallError>> {
    let call = |(replica, (from, to)): (usize, &mut (Vec<T>, Vec<T>))| {
        let (count, stream) = (from.len(), ptr::without_provenance_mut(all.gpus()[replica] + 100));
        let vectors = Vectors { from: from.as_ptr().cast(), to: to.as_mut_ptr().cast(), count, number };
        // SAFETY: the vectors have the same number of elements, and live until the group has ended.
        unsafe { nccl.all_reduce(all, replica, vectors, stream) }
    };
    vectors.iter_mut().enumerate().map(call).collect()
}

// INV-16
#[test]
fn functions_are_called_as_the_header_declares_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = played(folder.path(), None) else { return eprintln!("there is no rustc: not tested") };
    let nccl = Nccl::load(file.to_str().unwrap()).unwrap();
    let behind = Behind::of(&file);
    let bind = |gpu| behind.bind(gpu);
    (behind.played)(3, 0);
    let all = Communicators::new(&[5, 2, 7]);
    nccl.link(&all, bind).unwrap();
    assert_eq!(nccl.busy(&all, "played").unwrap(), [5, 2, 7]);
    // Its location changes before NCCL is done.
    let all = Box::new(all);
    assert_eq!(questions(&nccl, &all), 2);
    assert_eq!(all.gpus(), [5, 2, 7]);

    let mut floats: Vec<_> = [1f32, 10., 100.].map(|x| (vec![x, 2. * x], vec![0.; 2])).into();
    let mut integers: Vec<_> = [1i64, 10, 100].map(|x| (vec![x, 2 * x, 3 * x], vec![0; 3])).into();
    nccl.start().unwrap();
    let called = [add(&nccl, &all, 7, &mut floats), add(&nccl, &all, 4, &mut integers)].concat();
    assert_eq!(called, vec![Ok(()); 6]);
    nccl.end().unwrap();
    // NCCL determines when it starts.
    assert!(floats.iter().all(|(_, to)| *to == [0.; 2]));
    assert_eq!(questions(&nccl, &all), 3);
    assert!(floats.iter().all(|(_, to)| *to == [111., 222.]), "{floats:?}");
    assert!(integers.iter().all(|(_, to)| *to == [111, 222, 333]), "{integers:?}");

    // The error has NCCL's message and the function.
    let fault = nccl.end().unwrap_err();
    assert_eq!(fault, CallError { call: "ncclGroupEnd", reason: "invalid usage".into() });
    let eighth = Communicators::new(&[0, 8]);
    let fault = nccl.link(&eighth, bind).unwrap_err();
    assert_eq!(fault, CallError { call: "ncclCommInitRankConfig", reason: "invalid argument".into() });
    // The group has ended.
    assert_eq!(nccl.end().unwrap_err().reason, "invalid usage");
    // The group also ends if a GPU cannot be made current.
    let lost = || CallError { call: "played", reason: "no such GPU".into() };
    assert_eq!(nccl.link(&Communicators::new(&[0]), |_| Err(lost())), Err(lost()));
    assert_eq!(nccl.end().unwrap_err().reason, "invalid usage");

    // Communicators that were created in part are also aborted.
    assert_eq!((behind.played)(0, 0), 4);
    nccl.abort(eighth);
    assert_eq!((behind.played)(0, 0), 3);
    nccl.abort(*all);
    assert_eq!((behind.played)(0, 0), 0);
}

#[test]
fn later_failures_name_the_gpu_and_an_endless_call_stays_in_progress() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = played(folder.path(), None) else { return eprintln!("there is no rustc: not tested") };
    let nccl = Nccl::load(file.to_str().unwrap()).unwrap();
    let behind = Behind::of(&file);
    let all = Communicators::new(&[3, 1]);
    nccl.link(&all, |gpu| behind.bind(gpu)).unwrap();
    assert!(nccl.busy(&all, "ncclGroupEnd").unwrap().is_empty());
    (behind.played)(-1, 1);
    let fault = nccl.busy(&all, "ncclGroupEnd").unwrap_err();
    assert_eq!(fault.to_string(), "ncclGroupEnd: on GPU 3: unhandled cuda error");

    let mut floats: Vec<_> = [1f32, 10.].map(|x| (vec![x], vec![0.])).into();
    nccl.start().unwrap();
    assert_eq!(add(&nccl, &all, 7, &mut floats), [Ok(()), Ok(())]);
    nccl.end().unwrap();
    for _ in 0..100 {
        assert_eq!(nccl.busy(&all, "ncclGroupEnd").unwrap(), [3, 1]);
    }
    nccl.abort(all);
    assert_eq!((behind.played)(0, 0), 0);
    assert!(floats.iter().all(|(_, to)| *to == [0.]));
}

#[test]
fn a_release_that_is_too_old_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = played(folder.path(), Some("21304")) else {
        return eprintln!("there is no rustc: not tested");
    };
    let fault = Nccl::load(file.to_str().unwrap()).err().unwrap();
    assert_eq!(fault, LoadError::TooOld { found: "2.13.4".into() });
    assert_eq!(check_release(2708), Err(LoadError::TooOld { found: "2.7.8".into() }));
    for release in [21400, 21805, 22703, 23000] {
        check_release(release).unwrap();
    }
}
