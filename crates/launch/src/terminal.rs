//! [`Style`]: the format of output in a terminal, in which the name of its task precedes each line.

use crate::{Output, Stream, Task};
use std::io::{self, IsTerminal, Write};

/// The colours assigned to tasks in turn, as ANSI codes: cyan, yellow, magenta, green, blue, red.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// The prefix of the launcher's notices.
const OWN: &str = "launch";

/// The style of output lines: the width of the prefix, and whether each stream is colored.
pub(crate) struct Style {
    /// The width of the prefix: the length of the longest name of a task, or of [`OWN`] if that is longer.
    width: usize,
    out_coloured: bool,
    err_coloured: bool,
}

impl Style {
    /// Creates the style for the given tasks. Lines are colored if the output is a terminal that supports colors, and
    /// `NO_COLOR` is not set.
    pub(crate) fn of<'a>(tasks: impl Iterator<Item = &'a Task>) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let wanted = !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self {
            width: width(tasks),
            out_coloured: wanted && io::stdout().is_terminal(),
            err_coloured: wanted && io::stderr().is_terminal(),
        }
    }

    /// Formats a line or notice, with its prefix and terminator. Also returns the stream to which it must be written.
    pub(crate) fn line(&self, output: Output<'_>) -> (Stream, Vec<u8>) {
        let own;
        let (stream, name, colour, text) = match output {
            Output::Line { index, task, stream, text } => {
                (stream, task.to_string(), COLOURS[index % COLOURS.len()], text)
            }
            Output::Notice(notice) => {
                own = notice.to_string();
                (Stream::Err, OWN.into(), 1, own.as_bytes())
            }
        };
        let coloured = if stream == Stream::Out { self.out_coloured } else { self.err_coloured };
        let width = self.width;
        let mut line = if coloured {
            format!("\x1b[{colour}m{name:width$} │\x1b[0m ").into_bytes()
        } else {
            format!("{name:width$} │ ").into_bytes()
        };
        line.extend_from_slice(text);
        line.push(b'\n');
        (stream, line)
    }

    /// Writes a line or notice in one call, so that lines of different tasks do not mix.
    pub(crate) fn write(&self, output: Output<'_>) -> io::Result<()> {
        let (stream, line) = self.line(output);
        match stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(&line).and_then(|()| out.flush())
            }
            Stream::Err => io::stderr().lock().write_all(&line),
        }
    }
}

fn width<'a>(tasks: impl Iterator<Item = &'a Task>) -> usize {
    tasks.map(|task| task.to_string().len()).max().unwrap_or(0).max(OWN.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, Notice, Signal};

    fn line(style: &Style, stream: Stream, text: &[u8]) -> String {
        let task = Job::Worker.task(1);
        String::from_utf8_lossy(&style.line(Output::Line { index: 1, task: &task, stream, text }).1)
            .into_owned()
    }

    #[test]
    fn lines_have_the_name_of_their_task() {
        let tasks = [Job::Worker.task(1), Job::Evaluator.task(0)];
        let mut style = Style { width: width(tasks.iter()), out_coloured: false, err_coloured: false };
        assert_eq!(line(&style, Stream::Out, b"loss 0.5"), "worker 1    │ loss 0.5\n");
        assert_eq!(line(&style, Stream::Err, b""), "worker 1    │ \n");
        style.err_coloured = true;
        assert_eq!(line(&style, Stream::Out, b"x"), "worker 1    │ x\n");
        assert_eq!(line(&style, Stream::Err, b"x"), "\x1b[33mworker 1    │\x1b[0m x\n");
        let notice = Notice::Interrupted { signal: Signal::Terminate };
        let (stream, own) = style.line(Output::Notice(&notice));
        assert_eq!(stream, Stream::Err);
        assert!(
            String::from_utf8(own).unwrap().starts_with("\x1b[1mlaunch      │\x1b[0m SIGTERM: forwarded")
        );
    }
}
