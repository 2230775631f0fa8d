//! The rules for the members of a world.

use super::{GENERATIONS, Simulation};
use crate::checks::Certain;
use crate::network::{Conn, Pid};
use crate::process::Process;
use crate::working::Working;
use std::collections::BTreeSet;

impl Simulation {
    /// Checks the world of a process that has just joined it, and records the highest generation. Does nothing for
    /// other processes. The rules:
    /// - The number of members is within the limits of the plan.
    /// - If leaders are elected, no other world has all of its workers, and enough processes follow the leader.
    /// - No other process of the same worker is working in the same generation.
    /// - In plans with [`Certain::NobodyLate`], the world contains the live workers that were waiting for it
    ///   ([`Process::owed`]), unless it is full.
    /// - The process has only one link to each worker.
    /// - If the process at the other end of a link still has this link and knows its world, it is the right worker of
    ///   the same world.
    pub(super) fn compare_members(&mut self, pid: Pid) {
        let process = &self.processes[pid];
        let Some(working) = process.working().filter(|working| working.since == self.now()) else { return };
        self.made = self.made.max(process.generation);
        if self.made > GENERATIONS {
            return self.broken("they meet again and again".to_owned());
        }
        let mut met = vec![false; self.surroundings.plan.workers];
        let mut wrong = Vec::new();
        // INV-43
        let least =
            self.surroundings.plan.elastic.map_or(self.surroundings.plan.workers, |elastic| elastic.least);
        if working.places().len() < least {
            wrong.push(format!(
                "{} is in a world of {:?}, fewer than {least}",
                process.name,
                working.places()
            ));
        }
        // INV-111
        if let Some(electorate) = self.surroundings.plan.electorate() {
            if let [one, other, ..] = &self.complete_worlds()[..] {
                wrong.push(format!("there are two worlds at once: {one:?} and {other:?}"));
            }
            let (followers, needed) = (self.followers(pid, working), electorate.needed());
            let begins = self.surroundings.leader == Some(pid) && self.led.insert((pid, process.generation));
            if begins && followers + 1 < needed {
                wrong.push(format!(
                    "{} has begun a world with {followers} processes that follow it, and needs {needed} tasks",
                    process.name
                ));
            }
        }
        // INV-100
        let most = self.surroundings.plan.most();
        if working.places().len() > most {
            wrong.push(format!("{} is in a world of {:?}, more than {most}", process.name, working.places()));
        }
        // If all have failed and restart, they begin with generation 1 again.
        let same = |other: &&Process| {
            other.name.rank == process.name.rank
                && other.name.pid != pid
                && other.generation == process.generation
        };
        let mut others = self.processes.iter().filter(same);
        if let Some(other) = others.find(|other| other.working().is_some()) {
            let (rank, generation) = (process.name.rank, process.generation);
            wrong.push(format!(
                "{} and {} are worker {rank} of generation {generation}",
                process.name, other.name
            ));
        }
        // A worker that was in a later world has the state that counts.
        if let (Some((places, left)), Certain::NobodyLate) = (&process.owed, self.surroundings.plan.certain) {
            let lives = |place: &usize| {
                let is =
                    |other: &Process| other.lives() && other.name.rank == *place && other.started < *left;
                self.processes.iter().any(is)
            };
            let without = places.iter().find(|place| !working.places().contains(place) && lives(place));
            // In a full world there is no place for those that have just started.
            if let Some(place) = without.filter(|_| working.places().len() < most) {
                wrong.push(format!("{} has met without worker {place}, which waited", process.name));
            }
        }
        for (conn, rank) in working.links() {
            if std::mem::replace(&mut met[*rank], true) {
                wrong.push(format!("{} has two links to worker {rank}", process.name));
            }
            let there = self.surroundings.network.peer(*conn, pid);
            let there = there.and_then(|(there, _)| Some(&self.processes[there?]));
            // INV-43
            if let Some(other) = there.and_then(Process::working)
                && other.links().contains_key(conn)
                && (other.generation, other.places()) != (working.generation, working.places())
                && other.generation == working.generation
            {
                let (mine, theirs) = (working.places(), other.places());
                wrong.push(format!(
                    "{} is in a world of {mine:?}, and its worker {rank} of {theirs:?}",
                    process.name
                ));
            }
            // INV-34. A worker that has closed the connection belongs to another world by now. A worker that
            // has not received its world yet may still join this one.
            let other = there.and_then(|there| Some((there, there.links()?)));
            if let Some((there, (links, generation, _))) = other
                && links.contains_key(conn)
                && let Some(generation) = generation
                && (Some(&there.name.rank), generation) != (working.places().get(*rank), process.generation)
            {
                let (here, mine) = (process.name, process.generation);
                wrong.push(format!(
                    "{here} of generation {mine} takes {} of generation {generation} for its worker {rank}",
                    there.name
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.broken(wrong));
    }

    /// Checks that a process which continues after the given number of updates does not do so without another one that
    /// lives and has made more. One update more is possible: that one may have made it before the world noticed a loss.
    /// Only in plans in which every process reaches all others, and leaders are elected.
    pub(super) fn compare_with_absent(&mut self, pid: Pid, updates: u64) {
        // INV-111
        let plan = &self.surroundings.plan;
        if plan.electorate().is_none() || plan.certain != Certain::NobodyLate {
            return;
        }
        let made = |other: &Process| {
            let training = other.training().filter(|training| other.lives() && training.is_whole());
            training.map_or(0, |training| training.weights().made)
        };
        if let Some(other) = self.processes.iter().find(|other| made(other) > updates + 1) {
            let (name, absent) = (self.processes[pid].name, other.name);
            self.broken(format!(
                "{name} goes on after update {updates}, and {absent} lives and has made {}",
                made(other)
            ));
        }
    }

    /// Returns the number of members and spares that follow the process `pid`, which has just begun a world as the
    /// leader. One counts if it has gone without the leader's knowledge, but not if it has a link to the leader, and
    /// follows another one.
    fn followers(&self, pid: Pid, working: &Working) -> usize {
        let follows = |conn: &Conn| {
            let there = self.surroundings.network.peer(*conn, pid).and_then(|(there, _)| there);
            let other = there.map(|there| &self.processes[there]).filter(|other| {
                let is_link = other.links().is_some_and(|(links, ..)| links.contains_key(conn));
                is_link && self.surroundings.network.is_open(*conn, other.name.pid)
            });
            let leader = other.and_then(Process::leader);
            leader.is_none_or(|leader| leader == self.processes[pid].name.rank)
        };
        working.links().keys().copied().chain(working.spares()).filter(follows).count()
    }

    /// Returns whether a process of this worker may give up although the training continues: it cannot reach the leader
    /// of the others, which have a world without it.
    pub(super) fn is_left_out(&self, rank: usize) -> bool {
        let Some(leader) = self.surroundings.leader.map(|pid| self.processes[pid].name.rank) else {
            return false;
        };
        let is_cut = |from, to| self.surroundings.network.is_cut(self.now(), from, to).is_some();
        let is_parted = is_cut(rank, leader) || is_cut(leader, rank);
        let mut worlds = self.complete_worlds().into_iter();
        is_parted && worlds.any(|(_, places)| places.contains(&leader) && !places.contains(&rank))
    }

    /// Returns the worlds of which all workers are there, each with its generation and the cluster indices of its
    /// workers. Only such a world makes steps.
    fn complete_worlds(&self) -> Vec<(u64, &[usize])> {
        let all = || self.processes.iter().filter_map(|process| Some((process, process.working()?)));
        let worlds: BTreeSet<_> = all().map(|(_, working)| (working.generation, working.places())).collect();
        let is_there = |world: &(u64, &[usize]), place: usize| {
            all().any(|(process, working)| {
                process.name.rank == place && (working.generation, working.places()) == *world
            })
        };
        let is_complete = |world: &(u64, &[usize])| world.1.iter().all(|place| is_there(world, *place));
        worlds.into_iter().filter(is_complete).collect()
    }
}
