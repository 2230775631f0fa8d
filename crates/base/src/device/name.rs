//! Names of devices, in TensorFlow's form and in short form.

use crate::device::gpu;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The kind of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A logical CPU device. There can be any number, each with its own replica and thread.
    Cpu,
    /// A GPU: of CUDA or, in a build with the feature `metal`, of Metal.
    Gpu,
}

/// The resolved name of a device of this process, or of a parameter server.
///
/// Parses `cpu:0`, `CPU:1`, `/cpu:0`, `/device:CPU:0`, `cuda:0`, `/job:localhost/replica:0/task:0/device:GPU:1`,
/// `/job:ps/replica:0/task:1/device:CPU:0`; prints the full form.
///
/// ```
/// let device: distribute::DeviceName = "cpu:1".parse()?;
/// assert_eq!(device.to_string(), "/job:localhost/replica:0/task:0/device:CPU:1");
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.DeviceSpec")]
#[doc(alias = "DeviceSpec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its number among those of its kind, from 0.
    pub index: usize,
    /// The parameter server that it is of, by the number of its task; `None` for this process.
    pub server: Option<usize>,
}

impl DeviceName {
    /// The `index`-th logical CPU device.
    pub const fn cpu(index: usize) -> Self {
        Self { kind: DeviceKind::Cpu, index, server: None }
    }

    /// The `index`-th GPU.
    pub const fn gpu(index: usize) -> Self {
        Self { kind: DeviceKind::Gpu, index, server: None }
    }

    /// The CPU of a parameter server, where it keeps variables.
    pub const fn of_server(task: usize) -> Self {
        Self { kind: DeviceKind::Cpu, index: 0, server: Some(task) }
    }

    /// candle's device. All logical CPU devices are candle's single CPU device, and each GPU is opened once in a
    /// process: all threads share its handle, and what they do there is done in that order.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU that candle cannot open, for any GPU without the cargo features `cuda` and `metal`,
    /// and for a parameter server's.
    pub fn to_candle(self) -> Result<candle_core::Device> {
        let unusable = |reason| Error::Device { name: self.to_string(), reason };
        match self.kind {
            _ if self.server.is_some() => Err(unusable(
                "it is a parameter server's: variables are kept there, and nothing is computed; name a device of this process"
                    .into(),
            )),
            DeviceKind::Cpu => Ok(candle_core::Device::Cpu),
            DeviceKind::Gpu if cfg!(not(any(feature = "cuda", feature = "metal"))) => Err(unusable(
                "this build cannot use it: it is without the cargo feature \"cuda\"; write features = [\"cuda\"] at the \
                 dependency on distribute (it needs nvcc), or [\"metal\"] on a Mac"
                    .into(),
            )),
            DeviceKind::Gpu => gpu::open(self.index).map_err(|error| {
                let error = error.to_string();
                unusable(format!("candle cannot open it: {}", error.lines().next().unwrap_or_default()))
            }),
        }
    }

    /// The device of this process that holds a value for this device: for a parameter server, the CPU.
    #[doc(hidden)]
    pub fn in_this_process(self) -> Self {
        if self.server.is_some() { Self::cpu(0) } else { self }
    }

    /// Whether a replica there has copies of what it computes with: on the CPU all share the variables themselves.
    #[doc(hidden)]
    pub fn has_own_memory(self) -> bool {
        self.kind != DeviceKind::Cpu || generic()
    }
}

impl DeviceName {
    /// Whether optimizers can update what is there by candle's operations. Of Metal they lack f64.
    #[doc(hidden)]
    pub fn can_update(self) -> bool {
        self.has_own_memory() && (self.kind == DeviceKind::Cpu || cfg!(feature = "cuda"))
    }
}

/// Whether a tensor is where this crate's own loops compute: in the memory of the CPU. All others are computed by
/// candle's operations.
pub fn is_native(tensor: &candle_core::Tensor) -> bool {
    tensor.device().is_cpu() && !generic()
}

/// Whether CPUs are treated as other devices are, with copies of variables and candle's operations: a test of these,
/// without a GPU.
fn generic() -> bool {
    static GENERIC: OnceLock<bool> = OnceLock::new();
    *GENERIC.get_or_init(|| std::env::var_os(GENERIC_DEVICES).is_some_and(|value| value == "1"))
}

/// The environment variable for [`generic`].
const GENERIC_DEVICES: &str = "DISTRIBUTE_GENERIC_DEVICES";

/// The job of parameter servers.
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
                    server = Some(task.map_err(|_| wrong(format!("{value:?} is no number of a task")))?);
                } else if value != local {
                    return Err(wrong(format!(
                        "{key}{value} is not of this process; a strategy of one process takes local devices only"
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
            return Err(wrong("which task of the job ps is not said".into()));
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
            ("/job:ps/replica:0/task:x/device:CPU:0", "no number of a task"),
        ] {
            let error = name.parse::<DeviceName>().unwrap_err();
            assert!(
                matches!(error, Error::Device { .. }) && error.to_string().contains(why),
                "{name}: {error}"
            );
        }
    }
}
