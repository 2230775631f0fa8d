//! A variable as a part of a checkpoint.

use super::access::{Access, Sort, Way};
use super::variable::Variable;
use crate::Result;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_as, require_names};
use distribute_tensor::{HostTensor, Leaf, Write};

/// ON_WRITE: the one value. ON_READ: what is read from outside of `run`, so that of NONE cannot be saved; it is
/// restored by the rules of `assign`, a SUM in equal shares. Beside it each replica's copy, which comes back as it
/// was where there are as many.
impl Checkpointed for Variable {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        writer.insert(prefix, self.read_leaf()?.to_host()?)?;
        self.save_copies(prefix, writer)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        require_names(from, &[prefix.to_string()])?;
        let value = read_as(from, prefix, self.dtype(), self.dims())?;
        const OPERATION: &str = "restore";
        let place = self.place(OPERATION, true)?;
        let copies = match self.saved_copies(prefix, from)? {
            Some(copies) => copies,
            None => match self.way(OPERATION, Access::Write(Write::Assign), place.kind)? {
                Way::Shares => self.shares(&value)?,
                _ => vec![value; self.copy_count()],
            },
        };
        Ok(Box::new(move || self.set_copies(&copies)))
    }
}

impl Variable {
    /// Adds each copy of an ON_READ variable.
    pub(super) fn save_copies(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        if self.0.sort == Sort::OnRead {
            let copies: Vec<Leaf> = self.copies()?;
            let copies = copies.iter().map(Leaf::to_host).collect::<Result<Vec<_>, _>>()?;
            writer.insert(of_replicas(prefix), HostTensor::stack(&copies.iter().collect::<Vec<_>>())?)?;
        }
        Ok(())
    }

    /// What each copy of an ON_READ variable was, if there were as many.
    pub(super) fn saved_copies(&self, prefix: &str, from: &Reader) -> Result<Option<Vec<HostTensor>>> {
        let (name, count) = (of_replicas(prefix), self.0.copies.len());
        let as_many = || Ok::<_, crate::Error>(from.describe(&name)?.shape.first() == Some(&count));
        if self.0.sort != Sort::OnRead || !from.contains(&name) || !as_many()? {
            return Ok(None);
        }
        let shape: Vec<usize> = [count].iter().chain(self.dims()).copied().collect();
        let rows = read_as(from, &name, self.dtype(), &shape)?;
        Ok(Some((0..count).map(|copy| rows.row(copy)).collect::<Result<_, _>>()?))
    }
}

/// Where the copies are: a row for each replica.
fn of_replicas(prefix: &str) -> String {
    format!("{prefix}/per_replica")
}
