//! The activity of a thread as slices of time, computed from the times at which spans are entered and exited. The
//! caller passes these times; no clock is read.

/// The rule by which a span is converted to slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceKind {
    /// The span becomes one slice, which may contain others.
    Complete,
    /// The span is a part of a replica's time, which is divided without overlap. If it contains another part, that part
    /// interrupts it.
    Part,
}

/// A slice of a thread's time, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) name: &'static str,
    /// The arguments as a JSON object, or an empty string.
    pub(super) args: String,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The spans that a thread has entered and not exited.
#[derive(Default)]
pub(super) struct Stack(Vec<Open>);

struct Open {
    span: u64,
    kind: SliceKind,
    /// The start of the slice that has not been written yet.
    since: u64,
    name: &'static str,
    args: String,
    /// Whether this span has the same name as the part that contains it, and continues that part's slice.
    continues: bool,
}

impl Open {
    fn slice(&self, now: u64) -> Option<Slice> {
        let slice = Slice { name: self.name, args: self.args.clone(), start: self.since, end: now };
        (now > self.since).then_some(slice)
    }
}

impl Stack {
    /// Returns the name, the arguments and the start of the thread's current part; `None` outside parts.
    pub(super) fn part(&self) -> Option<(&'static str, &str, u64)> {
        let part = self.0.iter().rev().find(|open| open.kind == SliceKind::Part)?;
        Some((part.name, &part.args, part.since))
    }

    /// Enters a span. If the span interrupts a part, returns the section of the part up to now. Returns `None` if the
    /// span interrupts nothing, or if that section is empty.
    pub(super) fn enter(
        &mut self,
        now: u64,
        span: u64,
        kind: SliceKind,
        name: &'static str,
        args: String,
    ) -> Option<Slice> {
        let around = self.0.last().filter(|around| kind == SliceKind::Part && around.kind == SliceKind::Part);
        let same = around.filter(|around| around.name == name);
        let open = match same {
            Some(same) => {
                Open { span, kind, since: same.since, name, args: same.args.clone(), continues: true }
            }
            None => Open { span, kind, since: now, name, args, continues: false },
        };
        let ended = around.filter(|_| same.is_none()).and_then(|around| around.slice(now));
        self.0.push(open);
        ended
    }

    /// Exits a span. Returns its slice or, if it was interrupted, the slice's last section. Returns `None` if the
    /// section is empty, continues in the span around it, or would overlap others, and if the span was not entered.
    pub(super) fn exit(&mut self, now: u64, span: u64) -> Option<Slice> {
        let at = self.0.iter().rposition(|open| open.span == span)?;
        let open = self.0.remove(at);
        // The slice of a span that ends out of order would overlap others, so it is dropped.
        if at < self.0.len() {
            return None;
        }
        if let Some(around) = self.0.last_mut().filter(|around| around.kind == SliceKind::Part) {
            match (open.kind, open.continues) {
                (SliceKind::Complete, _) => {}
                (SliceKind::Part, true) => around.since = open.since,
                (SliceKind::Part, false) => around.since = now,
            }
        }
        if open.continues { None } else { open.slice(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script: `+name` enters a span and `-name` exits it. Each word takes a nanosecond. Spans with a capital
    /// letter become complete slices.
    fn slices(script: &[&'static str]) -> Vec<(&'static str, u64, u64)> {
        let mut stack = Stack::default();
        let mut spans = Vec::new();
        let mut made = Vec::new();
        for (now, word) in script.iter().enumerate() {
            let (way, name) = word.split_at(1);
            let kind =
                if name.starts_with(char::is_uppercase) { SliceKind::Complete } else { SliceKind::Part };
            let slice = match way {
                "+" => {
                    spans.push((name, now as u64));
                    stack.enter(now as u64, now as u64, kind, name, String::new())
                }
                _ => {
                    let at = spans.iter().rposition(|(open, _)| *open == name).unwrap();
                    stack.exit(now as u64, spans.remove(at).1)
                }
            };
            made.extend(slice.map(|slice| (slice.name, slice.start, slice.end)));
        }
        made
    }

    #[test]
    fn a_part_interrupts_the_part_it_is_in() {
        let script =
            ["+Step", "+forward", "+backward", "-backward", "+waiting", "-waiting", "-forward", "-Step"];
        let expected = [
            ("forward", 1, 2),
            ("backward", 2, 3),
            ("forward", 3, 4),
            ("waiting", 4, 5),
            ("forward", 5, 6),
            ("Step", 0, 7),
        ];
        assert_eq!(slices(&script), expected);
    }

    #[test]
    fn the_same_part_again_goes_on() {
        let script = ["+a", "+b", "+b", "-b", "+c", "-c", "-b", "-a"];
        assert_eq!(slices(&script), [("a", 0, 1), ("b", 1, 4), ("c", 4, 5), ("b", 5, 6), ("a", 6, 7)]);
        let interrupted_inside = ["+b", "+b", "+c", "-c", "-b", "-b"];
        assert_eq!(slices(&interrupted_inside), [("b", 0, 2), ("c", 2, 3), ("b", 3, 5)]);
    }

    #[test]
    fn wholes_nest() {
        let script = ["+a", "+Whole", "+b", "-b", "-Whole", "-a"];
        assert_eq!(slices(&script), [("b", 2, 3), ("Whole", 1, 4), ("a", 0, 5)]);
    }

    #[test]
    fn slices_that_end_out_of_order_or_never_started_are_omitted() {
        assert_eq!(slices(&["+A", "+B", "-A", "-B"]), [("B", 1, 3)]);
        assert_eq!(Stack::default().exit(1, 7), None);
    }
}
