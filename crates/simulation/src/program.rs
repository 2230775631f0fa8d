//! The programs that simulated processes run.

use crate::context::Context;
use crate::scripted::Scripted;
use crate::training::Training;
use crate::working::{Acts, Go, Working};
use bytes::Bytes;
use distribute_cluster::Blame;
use std::sync::Arc;

/// The program of a process. A training run continues in the next world.
#[derive(Debug)]
pub enum Program {
    /// Sessions and calls of a script, which restarts in each world.
    Scripted(Scripted),
    /// A training run, which resumes after a loss.
    Training(Box<Training>),
}

impl Program {
    /// Starts or resumes the program, after the workers of a world have joined.
    pub fn joined(&mut self, working: &mut Working, context: &mut Context<'_>) {
        match self {
            Program::Scripted(scripted) => scripted.joined(working, context),
            Program::Training(training) => training.joined(working, context),
        }
    }
}

impl Acts for Program {
    fn act(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        match self {
            Program::Scripted(scripted) => scripted.act(working, context),
            Program::Training(training) => training.act(working, context),
        }
    }

    fn decided(
        &mut self,
        working: &mut Working,
        context: &mut Context<'_>,
        made: Result<Vec<Bytes>, Arc<Blame>>,
    ) -> Go {
        match self {
            Program::Scripted(scripted) => scripted.decided(working, context, made),
            Program::Training(training) => training.decided(working, context, made),
        }
    }
}
