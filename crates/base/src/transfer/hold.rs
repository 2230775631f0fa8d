//! Blocking a GPU for a while, to test code that must not wait for it.

#![allow(clippy::unwrap_used)]

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::result::stream::launch_host_function;
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Blocks candle's stream until a message is sent, but no longer than 10 s. Returns the sender of the message, and a
/// receiver that gets `true` if the message arrived in time.
pub fn hold_gpu(device: &CudaDevice) -> (Sender<()>, Receiver<bool>) {
    type Hold = (Receiver<()>, Sender<bool>);
    unsafe extern "C" fn hold(data: *mut c_void) {
        // SAFETY: `data` is the box made below, and this is the only call with it.
        let hold: Box<Hold> = unsafe { Box::from_raw(data.cast()) };
        let was_told = hold.0.recv_timeout(Duration::from_secs(10)).is_ok();
        // The receiver is gone if the test has failed.
        let _ = hold.1.send(was_told);
    }
    let ((go, told), (says, said)) = (channel(), channel());
    let data: *mut Hold = Box::into_raw(Box::new((told, says)));
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the stream is alive, and calls `hold` once, with its data. `hold` calls nothing of CUDA.
    unsafe { launch_host_function(stream.cu_stream(), hold, data.cast()) }.unwrap();
    (go, said)
}
