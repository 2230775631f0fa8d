//! The shell script that starts every task, with a guard that ends the task with its launcher.
//!
//! The script starts a guard in the task's process group, and then replaces itself by the command. The guard reads the
//! script's standard input, whose other end the launcher holds. When the launcher exits, even because of SIGKILL, that
//! input ends. The guard then kills the group: the task and all processes that it has started. Over ssh, the same
//! happens when the connection ends.
//!
//! Each line on that input is the name of a signal, which the guard sends to the group. Signals reach a task over ssh
//! in this way.
//!
//! The guard is a grandchild of the command's process, so that the command has no unexpected child. It ignores signals
//! to the group before the command starts, and holds neither end of the task's output. The script contains no secret,
//! and is the same for all tasks.

// - **INV-30** No process of a job outlives its launcher, however the launcher exits, except one that has left its
//   task's process group; and no process of a task outlives the task's first process. Tests:
//   `launch/tests/it/endings/mod.rs`, `launch/tests/it/processes.rs`, `launch/tests/it/ssh.rs`.

use std::ffi::OsStr;

/// The script that is run as `sh -c GUARD NAME COMMAND ARGUMENTS…`. It has no newline and no single quote, so that it
/// passes unchanged through login shells of all kinds.
pub(crate) const GUARD: &str = concat!(
    r#"exec 3<&0 </dev/null; "#,
    r#"( trap "" HUP INT QUIT TERM USR1 USR2; "#,
    r#"( while read -r s; do kill -s "$s" 0; done; kill -s KILL 0 ) <&3 3<&- >/dev/null 2>&1 & ); "#,
    r#"exec 3<&- "$@""#
);

/// Returns the command that ssh runs on another host. It reads `length` bytes of [`prelude`] from its input, and then
/// runs the guard. The task's environment and arguments are not on the command line, where all users of that host could
/// read them.
pub(crate) fn remote(length: usize) -> String {
    format!("exec sh -c 'eval \"$(dd bs=1 count={length} 2>/dev/null)\"; {GUARD}' distribute-launch")
}

/// Returns the part of the script that differs between tasks: it sets the environment, the folder and the command, and
/// checks that the command exists. `task` is named in errors.
pub(crate) fn prelude<'a>(
    task: &str,
    environment: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
    folder: &OsStr,
    command: impl Iterator<Item = &'a OsStr>,
) -> Vec<u8> {
    let mut script = Vec::new();
    for (name, value) in environment {
        script.extend_from_slice(b"export ");
        script.extend_from_slice(name.as_encoded_bytes());
        script.push(b'=');
        quote(&mut script, value);
        script.push(b'\n');
    }
    script.extend_from_slice(b"cd ");
    quote(&mut script, folder);
    script.extend_from_slice(b" || exit 126\nset --");
    for word in command {
        script.push(b' ');
        quote(&mut script, word);
    }
    let missing = format!(
        "\ncommand -v \"$1\" >/dev/null || {{ echo \"distribute launch: {task}: no command $1 on $(uname -n)\" >&2; exit 127; }}\n"
    );
    script.extend_from_slice(missing.as_bytes());
    script
}

/// Appends `word` to the script, quoted for the shell.
fn quote(script: &mut Vec<u8>, word: &OsStr) {
    script.push(b'\'');
    for byte in word.as_encoded_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(*byte),
        }
    }
    script.push(b'\'');
}

/// Returns whether a shell accepts `name` as the name of a variable. Other variables are not sent to other hosts.
pub(crate) fn is_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    name.iter().all(plain) && name.first().is_some_and(|first| !first.is_ascii_digit())
}

/// Splits text into words like a shell: at spaces that are not between quotes. Returns `None` if a closing quote is
/// missing.
pub fn split_words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(open) if open == c => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_passes_through_any_login_shell() {
        assert!(!GUARD.contains(['\n', '\'', '!']));
    }

    #[test]
    fn words_are_quoted() {
        let words = ["a b", "it's", "$(id)\n`id`", "", "-n", "é"];
        let environment = [("A", "x'y"), ("TF_CONFIG", "{\"a\": 1}")];
        let script = prelude(
            "worker 0",
            environment.iter().map(|(name, value)| (OsStr::new(*name), OsStr::new(*value))),
            OsStr::new("/tmp/it's"),
            words.iter().map(OsStr::new),
        );
        let script = String::from_utf8(script).unwrap();
        let expected = "export A='x'\\''y'\nexport TF_CONFIG='{\"a\": 1}'\ncd '/tmp/it'\\''s' || exit 126\n\
                        set -- 'a b' 'it'\\''s' '$(id)\n`id`' '' '-n' 'é'\n";
        assert!(script.starts_with(expected), "{script}");
    }

    #[test]
    fn names_of_variables() {
        for (name, good) in
            [("A", true), ("_a1", true), ("1a", false), ("", false), ("A=B", false), ("a;b", false)]
        {
            assert_eq!(is_name(OsStr::new(name)), good, "{name}");
        }
    }

    #[test]
    fn an_ssh_command_is_cut_into_words() {
        let words = |text| split_words(text).unwrap();
        assert_eq!(words("ssh -p 2222  -o X=y"), ["ssh", "-p", "2222", "-o", "X=y"]);
        assert_eq!(
            words("ssh -o 'ProxyCommand=nc %h %p' \"a \"b"),
            ["ssh", "-o", "ProxyCommand=nc %h %p", "a b"]
        );
        assert_eq!(words("ssh ''"), ["ssh", ""]);
        assert_eq!(words(" "), Vec::<String>::new());
        assert_eq!(split_words("ssh 'a"), None);
    }
}
