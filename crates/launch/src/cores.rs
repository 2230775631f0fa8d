//! The assignment of processor cores to tasks.

/// Partitions the cores among the tasks, in contiguous blocks of nearly equal length. Returns `None` if there is only
/// one task, or if there are more tasks than cores.
pub(crate) fn partition(cores: &[usize], tasks: usize) -> Option<Vec<Vec<usize>>> {
    if tasks < 2 || tasks > cores.len() {
        return None;
    }
    let (each, more) = (cores.len() / tasks, cores.len() % tasks);
    let mut rest = cores;
    let block = |task| {
        let (block, left) = rest.split_at(each + usize::from(task < more));
        rest = left;
        block.to_vec()
    };
    Some((0..tasks).map(block).collect())
}

/// Sorts processor numbers so that processors of the same core, and cores of the same socket, are neighbors. Blocks of
/// different tasks then share as little hardware as possible. `place` returns the socket and the core of a processor.
pub(crate) fn in_order(mut cores: Vec<usize>, place: impl Fn(usize) -> Option<(usize, usize)>) -> Vec<usize> {
    cores.sort_by_cached_key(|core| (place(*core), *core));
    cores
}

/// Returns the numbers of the processors on which this process may run; empty if the system does not report them.
#[cfg(target_os = "linux")]
pub(crate) fn allowed() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    in_order((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(), |core| {
        let read = |what| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/topology/{what}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Some((read("physical_package_id")?, read("core_id")?))
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Limits the calling thread, and processes that it starts later, to the given processors. Has no effect on systems
/// other than Linux.
#[cfg(target_os = "linux")]
pub(crate) fn limit_this_thread(cores: &[usize]) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_this_thread(_: &[usize]) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_gets_cores_of_its_own() {
        assert_eq!(partition(&[0, 1], 2), Some(vec![vec![0], vec![1]]));
        assert_eq!(partition(&[4, 5, 7, 9, 11], 2), Some(vec![vec![4, 5, 7], vec![9, 11]]));
        assert_eq!(partition(&[0, 1, 2], 3), Some(vec![vec![0], vec![1], vec![2]]));
    }

    #[test]
    fn nothing_is_parted_for_one_task_or_too_many() {
        for tasks in [0, 1, 3, 100] {
            assert_eq!(partition(&[0, 1], tasks), None);
        }
        assert_eq!(partition(&[], 2), None);
    }

    #[test]
    fn processors_of_a_core_and_cores_of_a_socket_are_neighbours() {
        // Two sockets of two cores of two threads, numbered like on Linux.
        let place = |cpu: usize| Some((cpu / 2 % 2, cpu % 2));
        assert_eq!(in_order((0..8).collect(), place), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(in_order(vec![3, 1, 2], |_| None), [1, 2, 3]);
    }
}
