//! Decides which operations on a variable are allowed in each context, and which copies they access. This is a pure
//! function that follows the tables in TensorFlow's documentation.

// - **INV-19** One function decides which operations of a variable are allowed in which context, and a refused
//   operation has changed nothing. Tests: `decisions/src/access.rs`, `computing/variables/contexts.rs`.

use distribute_base::{ContextKind, VariableAggregation as Aggregation};
use distribute_tensor::{ReduceOp, Write};

/// The kind of a variable. It depends on the strategy, the devices of the variable, and the requested synchronization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableKind {
    /// A variable of a single replica, without restrictions.
    Ordinary,
    /// A variable whose copies must be equal, or that has one copy for all replicas.
    OnWrite,
    /// A variable with one copy per replica. Each replica writes only its own copy.
    OnRead,
}

/// An operation on a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the complete value.
    Read,
    /// Writes the complete value with the given operation.
    Write(Write),
    /// Writes some of the rows with the given operation.
    Scatter(Write),
}

/// The copies that an operation accesses, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPlan {
    /// The operation accesses the copy of this replica, or the copy that is being updated.
    Own,
    /// A write goes to all copies, and a read uses any of them.
    All,
    /// A read combines the copies of all replicas.
    Combined(Combine),
    /// A write gives each copy a part of the value, so that the sum of the copies is the value.
    Split,
    /// The values that all replicas write are combined and written to all copies. All replicas must
    /// participate.
    Collective(Combine),
}

/// The method by which several values are combined into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The result of this operation on all values, such as their sum or mean.
    Reduce(ReduceOp),
    /// The value of replica 0.
    First,
}

/// Returns the copies that an operation accesses in context `found`, and how. If the operation is not allowed there,
/// returns advice for the error message.
pub fn plan(
    kind: VariableKind,
    aggregation: Aggregation,
    access: Access,
    found: ContextKind,
) -> Result<AccessPlan, &'static str> {
    let combine = match aggregation {
        Aggregation::None => None,
        Aggregation::Sum => Some(Combine::Reduce(ReduceOp::Sum)),
        Aggregation::Mean => Some(Combine::Reduce(ReduceOp::Mean)),
        Aggregation::OnlyFirstReplica => Some(Combine::First),
    };
    match (kind, access, found) {
        (_, _, ContextKind::Update) => match (kind, access) {
            (VariableKind::OnRead, Access::Scatter(_)) => Err(SCATTER_ON_READ),
            (VariableKind::OnWrite, Access::Scatter(how)) => ordered(how, combine).map(|()| AccessPlan::Own),
            _ => Ok(AccessPlan::Own),
        },
        (VariableKind::Ordinary, ..) => Ok(AccessPlan::All),

        (VariableKind::OnWrite, Access::Read, ContextKind::Replica) => Ok(AccessPlan::Own),
        (VariableKind::OnWrite, Access::Read, _) => Ok(AccessPlan::All),
        (VariableKind::OnWrite, Access::Write(_), ContextKind::Replica) => {
            combine.map(AccessPlan::Collective).ok_or(REPLICA_WRITE)
        }
        (VariableKind::OnWrite, Access::Write(_), _) => Ok(AccessPlan::All),
        (VariableKind::OnWrite, Access::Scatter(how), ContextKind::Replica) => {
            ordered(how, combine)?;
            combine.map(AccessPlan::Collective).ok_or(REPLICA_WRITE)
        }
        (VariableKind::OnWrite, Access::Scatter(how), _) => ordered(how, combine).map(|()| AccessPlan::All),

        (VariableKind::OnRead, Access::Scatter(_), _) => Err(SCATTER_ON_READ),
        (VariableKind::OnRead, _, ContextKind::Replica) => Ok(AccessPlan::Own),
        (VariableKind::OnRead, Access::Read, _) => match combine {
            None => Err(
                "create it with an aggregation, which combines its copies, or read them one by one with copies()",
            ),
            Some(combine) => Ok(AccessPlan::Combined(combine)),
        },
        (VariableKind::OnRead, Access::Write(how), _) => match (aggregation, how) {
            (Aggregation::Sum, Write::Assign) => Ok(AccessPlan::Split),
            (Aggregation::Sum, _) => Err(
                "its value is the sum of its copies: assign the complete value, or add on one replica, in run",
            ),
            _ => Ok(AccessPlan::All),
        },
    }
}

const REPLICA_WRITE: &str = "it has no aggregation for the replicas' values: create it with one, or use \
                             merge_call, and there reduce_to and update";
const SCATTER_ON_READ: &str = "rows can only be written to ON_WRITE variables: assign the complete value";

// SC-3
/// Returns an error for minimum, maximum and replacement of rows if the aggregation is SUM or MEAN, as in TensorFlow.
fn ordered(how: Write, combine: Option<Combine>) -> Result<(), &'static str> {
    match (how, combine) {
        (Write::Min | Write::Max | Write::Assign, Some(Combine::Reduce(_))) => Err(
            "rows of several replicas can be added, subtracted, multiplied and divided with aggregation SUM or \
                 MEAN; for others create the variable with ONLY_FIRST_REPLICA",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContextKind::{CrossReplica, Default, Replica, Update};

    const SUM: Combine = Combine::Reduce(ReduceOp::Sum);
    const MEAN: Combine = Combine::Reduce(ReduceOp::Mean);
    const AGGREGATIONS: [Aggregation; 4] =
        [Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica];

    /// Returns one row of a table: the plan for each aggregation; `None` if it is refused.
    fn row(kind: VariableKind, access: Access, found: ContextKind) -> [Option<AccessPlan>; 4] {
        AGGREGATIONS.map(|aggregation| plan(kind, aggregation, access, found).ok())
    }

    // INV-19
    #[test]
    fn wr_3_and_dv_1_table_of_on_write_variables() {
        for how in [Write::Assign, Write::Add, Write::Sub] {
            let write = Access::Write(how);
            let collective = [
                None,
                Some(AccessPlan::Collective(SUM)),
                Some(AccessPlan::Collective(MEAN)),
                Some(AccessPlan::Collective(Combine::First)),
            ];
            assert_eq!(row(VariableKind::OnWrite, write, Replica), collective);
            assert_eq!(row(VariableKind::OnWrite, write, CrossReplica), [Some(AccessPlan::All); 4]);
            assert_eq!(row(VariableKind::OnWrite, write, Default), [Some(AccessPlan::All); 4]);
            assert_eq!(row(VariableKind::OnWrite, write, Update), [Some(AccessPlan::Own); 4]);
        }
        assert_eq!(row(VariableKind::OnWrite, Access::Read, Replica), [Some(AccessPlan::Own); 4]);
        assert_eq!(row(VariableKind::OnWrite, Access::Read, CrossReplica), [Some(AccessPlan::All); 4]);
        assert_eq!(row(VariableKind::OnWrite, Access::Read, Update), [Some(AccessPlan::Own); 4]);
    }

    #[test]
    fn onr_2_table_of_on_read_variables() {
        for how in [Write::Assign, Write::Add, Write::Sub] {
            assert_eq!(row(VariableKind::OnRead, Access::Write(how), Replica), [Some(AccessPlan::Own); 4]);
            assert_eq!(row(VariableKind::OnRead, Access::Write(how), Update), [Some(AccessPlan::Own); 4]);
            let sum = (how == Write::Assign).then_some(AccessPlan::Split);
            let all = Some(AccessPlan::All);
            assert_eq!(row(VariableKind::OnRead, Access::Write(how), CrossReplica), [all, sum, all, all]);
        }
        assert_eq!(row(VariableKind::OnRead, Access::Read, Replica), [Some(AccessPlan::Own); 4]);
        let first = Some(AccessPlan::Combined(Combine::First));
        let combined = [None, Some(AccessPlan::Combined(SUM)), Some(AccessPlan::Combined(MEAN)), first];
        assert_eq!(row(VariableKind::OnRead, Access::Read, CrossReplica), combined);
        assert_eq!(row(VariableKind::OnRead, Access::Read, Default), combined);
    }

    #[test]
    fn sc_1_and_sc_3_table_of_scatters() {
        let [add, min] = [Access::Scatter(Write::Add), Access::Scatter(Write::Min)];
        let (all, own, first) =
            (Some(AccessPlan::All), Some(AccessPlan::Own), Some(AccessPlan::Collective(Combine::First)));
        let collective = [None, Some(AccessPlan::Collective(SUM)), Some(AccessPlan::Collective(MEAN)), first];
        assert_eq!(row(VariableKind::OnWrite, add, Replica), collective);
        assert_eq!(row(VariableKind::OnWrite, add, CrossReplica), [all; 4]);
        assert_eq!(row(VariableKind::OnWrite, add, Update), [own; 4]);
        assert_eq!(row(VariableKind::OnWrite, min, Replica), [None, None, None, first]);
        assert_eq!(row(VariableKind::OnWrite, min, CrossReplica), [all, None, None, all]);
        assert_eq!(row(VariableKind::OnWrite, min, Update), [own, None, None, own]);
        for found in [Replica, CrossReplica, Default, Update] {
            assert_eq!(row(VariableKind::OnRead, add, found), [None; 4]);
        }
    }

    // ONE-1
    #[test]
    fn ordinary_variables_have_no_rules() {
        for access in [Access::Read, Access::Write(Write::Add), Access::Scatter(Write::Min)] {
            for found in [Replica, CrossReplica, Default, Update] {
                assert!(row(VariableKind::Ordinary, access, found).iter().all(Option::is_some));
            }
        }
    }
}
