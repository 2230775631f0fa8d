//! The allowed operations on a variable in each context, and the way to do them: the tables of the documents,
//! as one pure function.

use distribute_base::{ContextKind, VariableAggregation as Aggregation};
use distribute_tensor::{ReduceOp, Write};

/// The kind of a variable, which the strategy chooses from the requested synchronization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableKind {
    /// One copy, one replica: no rules.
    Ordinary,
    /// Copies that are always equal, or one that all replicas share.
    OnWrite,
    /// A copy for each replica, which only that replica writes.
    OnRead,
}

/// An operation on a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Writes the complete value.
    Write(Write),
    /// Writes some of its rows.
    Scatter(Write),
}

/// The way to do an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessPlan {
    /// The copy of this replica, or the one that is being updated.
    Own,
    /// All copies for a write, any of them for a read.
    All,
    /// A read combines the copies of all replicas.
    Combined(Combine),
    /// A write gives each copy a part of the value, so that their sum is the value.
    Shares,
    /// The values that all replicas write are combined, and written to all copies. All replicas have to
    /// participate.
    Together(Combine),
}

/// The way in which several values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    Reduce(ReduceOp),
    First,
}

/// Returns the way to do the operation, or advice if it is refused.
pub(super) fn plan(
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
            combine.map(AccessPlan::Together).ok_or(REPLICA_WRITE)
        }
        (VariableKind::OnWrite, Access::Write(_), _) => Ok(AccessPlan::All),
        (VariableKind::OnWrite, Access::Scatter(how), ContextKind::Replica) => {
            ordered(how, combine)?;
            combine.map(AccessPlan::Together).ok_or(REPLICA_WRITE)
        }
        (VariableKind::OnWrite, Access::Scatter(how), _) => ordered(how, combine).map(|()| AccessPlan::All),

        (VariableKind::OnRead, Access::Scatter(_), _) => Err(SCATTER_ON_READ),
        (VariableKind::OnRead, _, ContextKind::Replica) => Ok(AccessPlan::Own),
        (VariableKind::OnRead, Access::Read, _) => match combine {
            None => Err(
                "give it an aggregation that says how its copies become one value, or read them one by one \
                         with copies()",
            ),
            Some(combine) => Ok(AccessPlan::Combined(combine)),
        },
        (VariableKind::OnRead, Access::Write(how), _) => match (aggregation, how) {
            (Aggregation::Sum, Write::Assign) => Ok(AccessPlan::Shares),
            (Aggregation::Sum, _) => {
                Err("its value is the sum of its copies: assign the whole, or add on one replica, in run")
            }
            _ => Ok(AccessPlan::All),
        },
    }
}

const REPLICA_WRITE: &str = "nothing says how the replicas' values become one: create it with an aggregation, or use \
                             merge_call, and there reduce_to and update";
const SCATTER_ON_READ: &str = "rows are written to ON_WRITE variables only: assign the whole value";

// SC-3
/// The minimum, the maximum and the replacement of several replicas' rows depend on their order.
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
            let together = [
                None,
                Some(AccessPlan::Together(SUM)),
                Some(AccessPlan::Together(MEAN)),
                Some(AccessPlan::Together(Combine::First)),
            ];
            assert_eq!(row(VariableKind::OnWrite, write, Replica), together);
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
            let sum = (how == Write::Assign).then_some(AccessPlan::Shares);
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
            (Some(AccessPlan::All), Some(AccessPlan::Own), Some(AccessPlan::Together(Combine::First)));
        let together = [None, Some(AccessPlan::Together(SUM)), Some(AccessPlan::Together(MEAN)), first];
        assert_eq!(row(VariableKind::OnWrite, add, Replica), together);
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
