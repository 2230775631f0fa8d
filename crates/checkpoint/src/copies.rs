//! Copies of the live tensors of a checkpoint.

use crate::{Error, Result, Writer};
use std::collections::BTreeMap;

impl Writer {
    /// Replaces all [live](Writer::insert_live) tensors by copies, so that the program may change them before it saves.
    ///
    /// # Errors
    /// - [`Error::Source`]: a live tensor cannot be held, for example because another thread is changing it, or cannot
    ///   be copied.
    pub fn copy_now(&mut self) -> Result<()> {
        self.copy_live(|| Ok(()), || ())
    }

    /// Replaces all live tensors by copies. Holds all of them first, then calls `held`, and releases the tensors of
    /// each lock as soon as they are copied. If `held` returns an error, returns it and copies nothing. Calls `copied`
    /// after each tensor.
    ///
    /// Tensors are held in the order of their names. A training step locks the variables of a model in the same
    /// order, so the two cannot deadlock.
    ///
    /// # Errors
    /// - [`Error::Source`]: tensors cannot be held or copied. `held` has been called only if all were held.
    pub(crate) fn copy_live(
        &mut self,
        held: impl FnOnce() -> Result<()>,
        mut copied: impl FnMut(),
    ) -> Result<()> {
        let mut positions = BTreeMap::new();
        let (mut locks, mut groups) = (Vec::new(), Vec::new());
        for (name, rows) in self.live_rows() {
            let Some(live) = rows.live().cloned() else { continue };
            let position = *positions.entry(live.address()).or_insert(locks.len());
            if position == locks.len() {
                locks.push((name, live.tensors));
                groups.push(Vec::new());
            }
            groups[position].push((name, live.index, rows));
        }
        let failed = |name: &str| {
            let name = name.to_owned();
            move |source| Error::Source { name, source }
        };
        let mut all = Vec::with_capacity(locks.len());
        for (name, tensors) in &locks {
            all.push(tensors.hold().map_err(failed(name))?);
        }
        held()?;
        for (held, group) in all.into_iter().zip(groups) {
            for (name, index, rows) in group {
                rows.set_copy(held.copy(index).map_err(failed(name))?).map_err(failed(name))?;
                copied();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{HeldTensors, LiveTensors, SourceError};
    use distribute_tensor::HostTensor;
    use std::sync::{Arc, RwLock, RwLockReadGuard};

    /// Two tensors behind one lock.
    struct Pair(RwLock<[i64; 2]>);

    impl LiveTensors for Pair {
        fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
            match self.0.try_read() {
                Ok(held) => Ok(Box::new(HeldPair(held))),
                Err(_) => Err("the pair is being changed".into()),
            }
        }
    }

    struct HeldPair<'a>(RwLockReadGuard<'a, [i64; 2]>);

    impl HeldTensors for HeldPair<'_> {
        fn copy(&self, index: usize) -> Result<HostTensor, SourceError> {
            let value = self.0.get(index).ok_or("there are two")?;
            Ok(HostTensor::vector(vec![*value]))
        }
    }

    fn writer(pair: &Arc<Pair>) -> Writer {
        let mut writer = Writer::new();
        let live: Arc<dyn LiveTensors> = pair.clone();
        for (name, index) in [("a", 1), ("b", 0), ("c", 1)] {
            writer.insert_live(name, distribute_tensor::DType::I64, [1], &live, index).unwrap();
        }
        writer
    }

    fn saved(writer: &Writer) -> Vec<i64> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        writer.save(&path, 1).unwrap();
        let reader = crate::Reader::open(&path).unwrap();
        ["a", "b", "c"].map(|name| reader.tensor(name).unwrap().to_vec::<i64>().unwrap()[0]).to_vec()
    }

    #[test]
    fn copies_are_of_the_time_of_the_call_and_each_lock_is_taken_once() {
        let pair = Arc::new(Pair(RwLock::new([1, 2])));
        let mut copied = writer(&pair);
        // Nothing else holds the lock afterwards.
        let is_held = || {
            assert!(pair.0.try_write().is_err());
            Ok(())
        };
        copied.copy_live(is_held, || ()).unwrap();
        *pair.0.try_write().unwrap() = [3, 4];
        assert_eq!(saved(&copied), [2, 1, 2]);
        // A save that is not in the background reads the current values.
        let mut current = writer(&pair);
        assert_eq!(saved(&current), [4, 3, 4]);
        current.copy_now().unwrap();
        *pair.0.try_write().unwrap() = [5, 6];
        assert_eq!(saved(&current), [4, 3, 4]);
    }

    #[test]
    fn tensors_that_are_being_changed_are_an_error_with_the_name() {
        let pair = Arc::new(Pair(RwLock::new([1, 2])));
        let _changing = pair.0.write().unwrap();
        let error = writer(&pair).copy_live(|| unreachable!(), || ()).unwrap_err();
        assert_eq!(error.to_string(), "\"a\" was not saved: the pair is being changed");
    }

    #[test]
    fn a_source_that_has_other_tensors_is_an_error() {
        let pair: Arc<dyn LiveTensors> = Arc::new(Pair(RwLock::new([1, 2])));
        let mut writer = Writer::new();
        writer.insert_live("a", distribute_tensor::DType::I64, [2], &pair, 0).unwrap();
        let error = writer.clone().copy_live(|| Ok(()), || ()).unwrap_err().to_string();
        assert_eq!(error, "\"a\" was not saved: int64[1] was read, instead of int64[2]");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        assert_eq!(writer.save(&path, 1).unwrap_err().to_string(), error);
        assert!(!path.exists());
        let error =
            Writer::new().insert_live("s", distribute_tensor::DType::String, [1], &pair, 0).unwrap_err();
        assert!(error.to_string().contains("use insert"), "{error}");
    }
}
