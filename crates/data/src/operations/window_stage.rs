//! The stage that yields windows, each as a batch of its elements that has not been assembled.

use super::kept::{Group, Groups};
use crate::Result;
use crate::chunk::{Assembly, Chunk};
use crate::stage::Stage;

/// Returns the number of windows into which `n` elements are collected. A window begins at every `shift`-th element,
/// and extends over `span` elements. If `exact` is `true`, only complete windows are counted.
pub(super) fn windows(n: usize, shift: usize, span: usize, exact: bool) -> usize {
    if !exact {
        n.div_ceil(shift)
    } else if n < span {
        0
    } else {
        (n - span) / shift + 1
    }
}

pub(super) struct WindowStage {
    input: Box<dyn Stage>,
    shift: usize,
    stride: usize,
    span: usize,
    exact: bool,
    /// The index of the next window.
    number: usize,
    /// The elements that have been read, beginning with the first of the next window.
    held: Assembly,
    /// The number of elements to skip before the beginning of the next window.
    gap: usize,
    ended: bool,
}

impl WindowStage {
    /// Creates a stage. Windows begin every `shift` elements and extend over `span` elements, of which they take every
    /// `stride`-th. All three must be at least 1. If `exact`, windows that are not full are dropped.
    pub(super) fn new(input: Box<dyn Stage>, shift: usize, stride: usize, span: usize, exact: bool) -> Self {
        Self { input, shift, stride, span, exact, number: 0, held: Assembly::new(0), gap: 0, ended: false }
    }

    /// Reads the elements up to the end of the next window. Returns whether there is another window.
    fn fill(&mut self) -> Result<bool> {
        let gap = std::mem::take(&mut self.gap);
        self.ended = self.ended || (gap > 0 && self.input.skip(gap)? < gap);
        while !self.ended && self.held.len() < self.span {
            match self.input.next(self.span - self.held.len()) {
                Some(chunk) => self.held.push(chunk?.assembled()?)?,
                None => self.ended = true,
            }
        }
        Ok(self.held.len() >= if self.exact { self.span } else { 1 })
    }

    /// Moves the beginning of the next window forward by `count` windows. Elements before it that have been read are
    /// dropped.
    fn advance(&mut self, count: usize) {
        let elements = count.saturating_mul(self.shift);
        let dropped = elements.min(self.held.len());
        self.held.drop_first(dropped);
        self.gap = self.gap.saturating_add(elements - dropped);
        self.number = self.number.saturating_add(count);
    }

    fn window(&mut self) -> Result<Option<Assembly>> {
        if !self.fill()? {
            return Ok(None);
        }
        let number = self.number;
        let window = if self.shift >= self.held.len() && self.stride == 1 {
            let read = self.held.len();
            let window = std::mem::replace(&mut self.held, Assembly::new(0));
            self.gap = self.shift - read;
            self.number += 1;
            window
        } else {
            let window = self.held.every(self.stride, self.span)?;
            self.advance(1);
            window
        };
        Ok(Some(window.numbered(number)))
    }
}

impl Stage for WindowStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.window().map(|window| window.map(Chunk::Batch)).transpose()
    }

    /// Skips windows. Reads only the elements of the last of them, to determine whether it exists.
    fn skip(&mut self, count: usize) -> Result<usize> {
        let Some(before) = count.checked_sub(1) else { return Ok(0) };
        let (wanted, held) = (before.saturating_mul(self.shift), self.held.len());
        let gap = std::mem::take(&mut self.gap);
        let beyond = gap.saturating_add(wanted.saturating_sub(held));
        let passed = if self.ended { 0 } else { self.input.skip(beyond)? };
        if passed < beyond {
            let rest = (held + passed).saturating_sub(gap);
            self.ended = true;
            self.held = Assembly::new(0);
            return Ok(windows(rest, self.shift, self.span, self.exact).min(before));
        }
        self.advance(before);
        self.gap = 0;
        // The last of the windows exists if its elements do.
        if self.fill()? {
            self.advance(1);
            return Ok(count);
        }
        let rest = wanted.saturating_add(self.held.len());
        Ok(windows(rest, self.shift, self.span, self.exact).min(before))
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

impl Groups for WindowStage {
    fn group(&mut self) -> Result<Option<Group>> {
        let index = self.number.saturating_mul(self.shift);
        Ok(self.window()?.map(|elements| Group { key: 0, index, elements, indices: Vec::new() }))
    }

    fn passes(&self) -> usize {
        Stage::passes(self)
    }
}
