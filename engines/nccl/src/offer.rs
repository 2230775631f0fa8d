//! The records that workers exchange before they link NCCL, and the agreement on them, as pure functions.

use crate::Error;
use bytes::Bytes;
use distribute_nccl_library::release_text;
use std::fmt::Write;

/// The id of a communicator, as created by NCCL.
pub(crate) type UniqueId = [u8; 128];

/// The UUID of a GPU.
pub(crate) type Gpu = [u8; 16];

/// The record of a worker: its NCCL and GPU, or the reason why it cannot participate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Able { release: i32, gpu: Gpu, id: UniqueId },
    Unable(String),
}

const ABLE: u8 = 1;
const UNABLE: u8 = 0;

impl Offer {
    pub fn encode(&self) -> Bytes {
        match self {
            Offer::Able { release, gpu, id } => {
                [&[ABLE][..], &release.to_le_bytes(), gpu, id].concat().into()
            }
            Offer::Unable(reason) => [&[UNABLE][..], reason.as_bytes()].concat().into(),
        }
    }

    /// Decodes a record. Returns `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&ABLE, able) => {
                let (release, rest) = able.split_first_chunk()?;
                let (gpu, id) = rest.split_first_chunk()?;
                let release = i32::from_le_bytes(*release);
                Some(Offer::Able { release, gpu: *gpu, id: id.try_into().ok()? })
            }
            (&UNABLE, reason) => Some(Offer::Unable(String::from_utf8_lossy(reason).into_owned())),
            _ => None,
        }
    }
}

/// Returns the id of the communicator that worker 0 has created, if all workers can participate.
///
/// # Errors
/// The error is the same on all workers.
/// - [`Error::Record`]: a record is malformed, or there are no records.
/// - [`Error::Worker`]: a worker cannot participate.
/// - [`Error::SameGpu`]: two workers use the same GPU.
/// - [`Error::Release`]: a worker has a different release of NCCL.
pub(crate) fn agree(records: &[Bytes]) -> Result<UniqueId, Error> {
    let mut agreed = None;
    let mut gpus: Vec<Gpu> = Vec::new();
    for (worker, record) in records.iter().enumerate() {
        match Offer::decode(record) {
            None => return Err(Error::Record { worker }),
            Some(Offer::Unable(reason)) => return Err(Error::Worker { worker, reason }),
            Some(Offer::Able { release, gpu, id }) => {
                let (first, name) = *agreed.get_or_insert((release, id));
                if release != first {
                    return Err(Error::Release {
                        worker,
                        theirs: release_text(release),
                        first: release_text(first),
                    });
                }
                if let Some(other) = gpus.iter().position(|other| *other == gpu) {
                    return Err(Error::SameGpu { first: other, second: worker, gpu: uuid(gpu) });
                }
                gpus.push(gpu);
                agreed = Some((first, name));
            }
        }
    }
    agreed.map(|(_, id)| id).ok_or(Error::Record { worker: 0 })
}

/// Returns the default GPU of a worker: the workers of a host use its GPUs in order. `hosts` has the host name of each
/// worker.
pub(crate) fn gpu_of(hosts: &[Bytes], worker: usize) -> usize {
    let host = hosts.get(worker);
    hosts.iter().take(worker).filter(|other| Some(*other) == host).count()
}

fn uuid(gpu: Gpu) -> String {
    gpu.iter().fold("GPU-".to_owned(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able(gpu: u8) -> Offer {
        Offer::Able { release: 22703, gpu: [gpu; 16], id: [gpu; 128] }
    }

    fn agreed(offers: &[Offer]) -> Result<UniqueId, String> {
        agree(&offers.iter().map(Offer::encode).collect::<Vec<_>>()).map_err(|error| error.to_string())
    }

    #[test]
    fn offers_round_trip_and_invalid_ones_are_refused() {
        for offer in [able(7), Offer::Unable("no GPU".into()), Offer::Unable(String::new())] {
            assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        }
        let whole = able(7).encode();
        for wrong in [&[][..], &[2], &whole[..whole.len() - 1], &[&whole[..], &[0]].concat()] {
            assert_eq!(Offer::decode(wrong), None, "{wrong:?}");
        }
        let error = agree(&[able(1).encode(), Bytes::from_static(b"\x01?")]).unwrap_err();
        assert!(matches!(error, Error::Record { worker: 1 }), "{error}");
    }

    #[test]
    fn workers_meet_by_the_name_that_worker_0_has_made() {
        assert_eq!(agreed(&[able(3), able(1), able(2)]), Ok([3; 128]));
    }

    #[test]
    fn the_first_worker_that_cannot_is_named() {
        let unable = |reason: &str| Offer::Unable(reason.into());
        let error = agreed(&[able(0), unable("there is no GPU 4"), unable("none")]).unwrap_err();
        assert_eq!(error, "worker 1 cannot use NCCL, so no worker can: there is no GPU 4");
    }

    #[test]
    fn one_gpu_for_two_and_another_release_are_refused() {
        let error = agreed(&[able(0), able(171), able(171)]).unwrap_err();
        assert!(error.starts_with("workers 1 and 2 use the same GPU (GPU-abababab"), "{error}");
        let older = Offer::Able { release: 21805, gpu: [9; 16], id: [0; 128] };
        let error = agreed(&[able(0), older]).unwrap_err();
        assert!(error.starts_with("worker 1 has NCCL 2.18.5, but worker 0 has 2.27.3"), "{error}");
    }

    #[test]
    fn workers_of_one_host_take_its_gpus_in_turn() {
        let hosts: Vec<_> =
            ["a", "b", "a", "a", "b"].iter().map(|host| Bytes::from_static(host.as_bytes())).collect();
        let gpus: Vec<_> = (0..5).map(|worker| gpu_of(&hosts, worker)).collect();
        assert_eq!(gpus, [0, 0, 1, 2, 1]);
    }
}
