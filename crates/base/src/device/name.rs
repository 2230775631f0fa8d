//! Names of devices, in TensorFlow's form and in a short form.

use crate::device::gpu;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A logical CPU device. There can be any number of them, each with its own replica and thread.
    Cpu,
    /// A GPU, accessed through CUDA or, with the cargo feature `metal`, through Metal.
    Gpu,
}

/// The parsed name of a device of this process or of a parameter server.
///
/// It can be parsed from `cpu:0`, `CPU:1`, `/cpu:0`, `/device:CPU:0`, `cuda:0`,
/// `/job:localhost/replica:0/task:0/device:GPU:1` or `/job:ps/replica:0/task:1/device:CPU:0`. It is displayed
/// in the full form.
///
/// ```
/// let device: distribute::strategy::DeviceName = "cpu:1".parse()?;
/// assert_eq!(device.to_string(), "/job:localhost/replica:0/task:0/device:CPU:1");
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.DeviceSpec")]
#[doc(alias = "DeviceSpec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The index of the device among the devices of the same kind, counted from 0.
    pub index: usize,
    /// The task index of the parameter server to which the device belongs; `None` for a device of this
    /// process.
    pub server: Option<usize>,
}

impl DeviceName {
    /// Returns the logical CPU device with the given index.
    pub const fn cpu(index: usize) -> Self {
        Self { kind: DeviceKind::Cpu, index, server: None }
    }

    /// Returns the GPU with the given index.
    pub const fn gpu(index: usize) -> Self {
        Self { kind: DeviceKind::Gpu, index, server: None }
    }

    /// Returns the CPU of the parameter server with the given task index, where its variables are stored.
    pub const fn of_server(task: usize) -> Self {
        Self { kind: DeviceKind::Cpu, index: 0, server: Some(task) }
    }

    /// Opens the candle device. All logical CPU devices are the same candle device. Each GPU is opened once per
    /// process: all threads share one handle, and their work on the GPU is executed in order.
    ///
    /// # Errors
    /// - [`Error::Device`]: candle cannot open the GPU, this build has neither of the cargo features `cuda`
    ///   and `metal`, or the device belongs to a parameter server.
    pub fn to_candle(self) -> Result<candle_core::Device> {
        let unusable = |reason| Error::Device { name: self.to_string(), reason };
        match self.kind {
            _ if self.server.is_some() => Err(unusable(
                "it belongs to a parameter server, which keeps variables and computes nothing; name a device of this process"
                    .into(),
            )),
            DeviceKind::Cpu => Ok(candle_core::Device::Cpu),
            DeviceKind::Gpu if cfg!(not(any(feature = "cuda", feature = "metal"))) => Err(unusable(
                "this build cannot use it, because it lacks the cargo feature \"cuda\"; write features = [\"cuda\"] at the \
                 dependency on distribute (it needs nvcc), or [\"metal\"] on a Mac"
                    .into(),
            )),
            DeviceKind::Gpu => gpu::open(self.index).map_err(|error| {
                let error = error.to_string();
                unusable(format!("candle cannot open it: {}", error.lines().next().unwrap_or_default()))
            }),
        }
    }

    /// Returns the device on which this process stores values for this device: the CPU for a parameter server,
    /// otherwise the device itself.
    #[doc(hidden)]
    pub fn in_this_process(self) -> Self {
        if self.server.is_some() { Self::cpu(0) } else { self }
    }

    /// Returns `true` if a replica on this device computes with copies of variables. On the CPU, all replicas
    /// share the variables.
    #[doc(hidden)]
    pub fn has_separate_memory(self) -> bool {
        self.kind != DeviceKind::Cpu || generic()
    }
}

impl DeviceName {
    /// Returns `true` if optimizers can update variables on this device with candle's operations. On a GPU, this
    /// requires CUDA, because Metal does not support f64.
    #[doc(hidden)]
    pub fn can_update(self) -> bool {
        self.has_separate_memory() && (self.kind == DeviceKind::Cpu || cfg!(feature = "cuda"))
    }
}

/// Returns `true` if this project's own loops compute with a tensor: it is in CPU memory, and
/// `DISTRIBUTE_GENERIC_DEVICES` is not 1. Candle's operations are used for all other tensors.
pub fn is_native(tensor: &candle_core::Tensor) -> bool {
    tensor.device().is_cpu() && !generic()
}

/// Returns `true` if CPUs are treated like other devices, with copies of variables and candle's operations. Tests use
/// this in place of a GPU.
fn generic() -> bool {
    static GENERIC: OnceLock<bool> = OnceLock::new();
    *GENERIC.get_or_init(|| std::env::var_os(GENERIC_DEVICES).is_some_and(|value| value == "1"))
}

/// The environment variable that [`generic`] reads.
const GENERIC_DEVICES: &str = "DISTRIBUTE_GENERIC_DEVICES";

/// The name of the parameter servers' job.
const PS: &str = "ps";

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Gpu => "GPU",
        };
        let (job, task) = self.server.map_or(("localhost", 0), |task| (PS, task));
        write!(f, "/job:{job}/replica:0/task:{task}/device:{kind}:{}", self.index)
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Device { name: name.to_string(), reason };
        let lower = name.to_ascii_lowercase();
        let mut rest = lower.trim_start_matches('/');
        let (mut on_server, mut server) = (false, None);
        for (key, local) in [("job:", "localhost"), ("replica:", "0"), ("task:", "0")] {
            if let Some(after) = rest.strip_prefix(key) {
                let (value, after) =
                    after.split_once('/').ok_or_else(|| wrong("no device is named".into()))?;
                if key == "job:" && value == PS {
                    on_server = true;
                } else if key == "task:" && on_server {
                    let task = value.parse();
                    server = Some(task.map_err(|_| wrong(format!("{value:?} is not the number of a task")))?);
                } else if value != local {
                    return Err(wrong(format!(
                        "{key}{value} is not of this process; a strategy of one process takes only local devices"
                    )));
                }
                rest = after;
            }
        }
        let rest = rest.strip_prefix("device:").unwrap_or(rest);
        let (kind, index) = rest.split_once(':').unwrap_or((rest, "0"));
        let kind = match kind {
            "cpu" => DeviceKind::Cpu,
            "gpu" | "cuda" => DeviceKind::Gpu,
            other => return Err(wrong(format!("unknown kind {other:?}; write cpu:0 or gpu:0"))),
        };
        let index =
            index.parse().map_err(|_| wrong(format!("{index:?} is not a number; write cpu:0 or gpu:0")))?;
        if on_server && server.is_none() {
            return Err(wrong("it does not say which task of the job ps".into()));
        }
        Ok(Self { kind, index, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn str_2_names_are_resolved_to_full_form() {
        let full = "/job:localhost/replica:0/task:0/device:CPU:1";
        for name in ["cpu:1", "CPU:1", "/cpu:1", "/device:CPU:1", "device:cpu:1", full] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), full, "{name}");
        }
        assert_eq!("cuda:2".parse::<DeviceName>().unwrap(), DeviceName::gpu(2));
    }

    // PLACE-1
    #[test]
    fn devices_of_parameter_servers_have_names_and_compute_nothing() {
        let name = "/job:ps/replica:0/task:12/device:CPU:0";
        assert_eq!(name.parse::<DeviceName>().unwrap(), DeviceName::of_server(12));
        assert_eq!(DeviceName::of_server(12).to_string(), name);
        let error = DeviceName::of_server(12).to_candle().unwrap_err();
        assert!(
            matches!(&error, Error::Device { reason, .. } if reason.contains("parameter server")),
            "{error}"
        );
    }

    #[test]
    fn bad_names_are_typed_errors_that_say_why() {
        for (name, why) in [
            ("tpu:0", "unknown kind"),
            ("cpu:x", "not a number"),
            ("", "unknown kind"),
            ("/job:worker/replica:0/task:0/device:CPU:0", "not of this process"),
            ("/job:localhost", "no device"),
            ("/job:localhost/replica:0/task:1/cpu:0", "task:1"),
            ("/job:ps/replica:0/device:CPU:0", "which task"),
            ("/job:ps/replica:0/task:x/device:CPU:0", "not the number of a task"),
        ] {
            let error = name.parse::<DeviceName>().unwrap_err();
            assert!(
                matches!(error, Error::Device { .. }) && error.to_string().contains(why),
                "{name}: {error}"
            );
        }
    }
}
