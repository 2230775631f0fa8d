//! [`Lines`]: splits a process's output into lines.

/// The maximum number of bytes of a line to buffer.
pub(crate) const MAX_LENGTH: usize = 64 * 1024;

/// A splitter of bytes into lines. It passes on a line of more than [`MAX_LENGTH`] bytes in pieces, so that a process
/// cannot make the launcher buffer more.
#[derive(Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
    /// Whether a piece of the current line was passed on.
    in_pieces: bool,
}

impl Lines {
    /// Splits the next bytes. Calls `line` for each complete line, without its terminator, and for each piece of a long
    /// line.
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end], &mut line);
            self.end(&mut line);
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes, &mut line);
    }

    /// Passes on the last line, at the end of the output, if it has no terminator.
    pub(crate) fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.begun.is_empty() {
            self.end(&mut line);
        }
    }

    fn keep(&mut self, mut bytes: &[u8], line: &mut impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            // Only if more bytes follow: a line of exactly this length is one piece.
            if self.begun.len() == MAX_LENGTH {
                line(&self.begun);
                self.begun.clear();
                self.in_pieces = true;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(MAX_LENGTH - self.begun.len()));
            self.begun.extend_from_slice(now);
            bytes = rest;
        }
    }

    fn end(&mut self, line: &mut impl FnMut(&[u8])) {
        let text = self.begun.strip_suffix(b"\r").unwrap_or(&self.begun);
        if !(self.in_pieces && text.is_empty()) {
            line(text);
        }
        self.begun.clear();
        self.in_pieces = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| found.push(line.to_vec()));
        }
        lines.finish(|line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let text = b"one\n\ntwo\r\nthr\xffee";
        let expected: [&[u8]; 4] = [b"one", b"", b"two", b"thr\xffee"];
        for at in 0..text.len() {
            assert_eq!(cut(&[&text[..at], &text[at..]]), expected, "cut at {at}");
        }
        assert_eq!(cut(&text.chunks(1).collect::<Vec<_>>()), expected);
        assert_eq!(cut(&[b"end\n"]), [b"end"]);
        assert_eq!(cut(&[b""]), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_end_is_split() {
        let long = vec![b'x'; 2 * MAX_LENGTH + 3];
        let lengths = |text: &[u8], step| {
            cut(&text.chunks(step).collect::<Vec<_>>()).iter().map(Vec::len).collect::<Vec<_>>()
        };
        for step in [1000, 4096, 65536, 200_000] {
            assert_eq!(lengths(&long, step), [MAX_LENGTH, MAX_LENGTH, 3]);
            assert_eq!(lengths(&long[..MAX_LENGTH], step), [MAX_LENGTH]);
        }
        let mut text = long[..MAX_LENGTH].to_vec();
        text.extend_from_slice(b"\nnext\n");
        assert_eq!(lengths(&text, 7), [MAX_LENGTH, 4]);
        let mut lines = Lines::default();
        lines.take(&long, |_| ());
        assert!(lines.begun.capacity() <= 2 * MAX_LENGTH);
    }
}
