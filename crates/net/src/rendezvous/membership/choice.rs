//! The choice of a world's members by the worker that leads.

use super::{Membership, Origin};
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl Membership {
    /// Returns the positions of the connected processes that have built their models as spares.
    pub fn spares(&self) -> BTreeSet<usize> {
        self.connected_from(Origin::Spare).map(|(place, _)| place).collect()
    }

    /// Returns the number of workers that were members of an earlier world: the connected ones, and this one.
    pub fn resuming(&self) -> usize {
        self.connected_from(Origin::Member).count() + 1
    }

    /// Returns whether to wait for members of an earlier world of which a spare knows. None of its members has
    /// connected yet, and one still may. Members of even earlier worlds do not have its state. This worker was in no
    /// world, or is an elected leader that was in an even earlier one.
    pub fn awaits_members(&self) -> bool {
        let table = |place: usize| self.tables.get(place).copied().unwrap_or_default();
        let spares = self.connected_from(Origin::Spare);
        let worlds = spares.map(|(place, generation)| (generation, table(place))).chain([self.spare_of]);
        let known = worlds.map(|(generation, table)| self.latest_formed(generation, table));
        let may_connect = self.connected().len() < self.connected.len();
        (self.before == 0 || self.is_elected) && may_connect && known.max() > Some(self.latest())
    }

    /// Returns the generation of the latest world, up to the one of this generation and table, that may have been
    /// complete, as far as the connected processes know.
    fn latest_formed(&self, generation: u64, table: u64) -> u64 {
        let is_here = |place: usize| place == self.me || self.connected.get(place) == Some(&true);
        let known = self.unformed.iter().enumerate().filter(|(place, _)| is_here(*place));
        let unformed = known.filter_map(|(_, world)| *world).filter(|world| world.covers(generation, table));
        unformed.map(|world| world.latest).max().unwrap_or(generation)
    }

    /// Returns the latest generation of which a connected process or this one was a member; 0 if there is none.
    pub fn latest(&self) -> u64 {
        let connected = self.connected_from(Origin::Member).map(|(_, generation)| generation).max();
        connected.unwrap_or_default().max(self.before)
    }

    /// Returns the number of workers, including this one, that were members or spares of the latest world, and
    /// therefore in no later one; 0 if there was no world.
    pub fn continuing(&self) -> usize {
        let latest = self.latest();
        let others = self.connected_from(Origin::Member).chain(self.connected_from(Origin::Spare));
        let others = others.filter(|(_, generation)| *generation == latest).count();
        if latest == 0 { 0 } else { others + usize::from(self.before.max(self.spare_of.0) == latest) }
    }

    /// Returns whether two connected workers could not link to each other.
    pub fn has_pair_apart(&self) -> bool {
        let connected: Vec<_> = self.connected().into_iter().collect();
        connected.iter().any(|place| connected.iter().any(|other| self.are_apart(*place, *other)))
    }

    /// Returns whether two workers could not link to each other.
    fn are_apart(&self, one: usize, other: usize) -> bool {
        self.apart.contains_key(&(one.min(other), one.max(other)))
    }

    /// Returns the position of each connected process of an origin, and the generation that the process claims.
    pub(super) fn connected_from(&self, origin: Origin) -> impl Iterator<Item = (usize, u64)> {
        let all = self.connected.iter().zip(&self.origins).zip(&self.generations).enumerate();
        all.filter(move |(_, ((connected, of), _))| **connected && **of == origin)
            .map(|(place, (_, generation))| (place, *generation))
    }

    /// Decides the members of the world: the connected workers, but at most `maximum` of them, including this one.
    /// Members of earlier worlds take precedence over spares, and spares over processes that have just started. Among
    /// processes of the same origin, a later generation takes precedence. If there are enough others, those that could
    /// not link to most of them are no members.
    ///
    /// Members of much earlier worlds take precedence over spares as well, because generations do not show which state
    /// is the latest: a leader claims those of worlds that were never complete.
    pub fn close(&mut self, maximum: usize) {
        let mut others: Vec<_> = self.connected().into_iter().filter(|place| *place != self.me).collect();
        others.sort_by_key(|place| {
            let generation = self.generations.get(*place).copied();
            (self.origins.get(*place).copied(), Reverse(generation), *place)
        });
        while others.len() >= maximum {
            let unlinked =
                |at: &usize| others.iter().filter(|one| self.are_apart(**one, others[*at])).count();
            match (0..others.len()).max_by_key(unlinked).filter(|at| unlinked(at) > 0) {
                Some(at) => others.remove(at),
                None => break,
            };
        }
        others.truncate(maximum.saturating_sub(1));
        others.push(self.me);
        others.sort_unstable();
        self.members = Some(others);
    }
}
