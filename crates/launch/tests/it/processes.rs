//! Real processes: their environment, their output, their exits.

use crate::support::{Fifo, PATIENCE, Said, ended, script};
use distribute_cluster::TfConfig;
use distribute_launch::{
    Cause, Deadline, End, Error, Job, Launch, Layout, Output, Plan, Signal, Stream, Task, split_words,
};
use distribute_testing::watched;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn worker(index: usize) -> Task {
    Job::Worker.task(index)
}

#[test]
fn each_task_gets_its_identity_and_all_share_one_secret() {
    watched(|| {
        let layout = Layout::new(2).with_chief().ps(1).with_evaluator();
        let told =
            r#"echo "$TF_CONFIG"; echo "$DISTRIBUTE_SECRET $DISTRIBUTE_RESTART $MINE ${REMOVED-none}""#;
        let fifo = Fifo::new();
        let heard = fifo.read();
        let (launch, said) =
            script(&layout, &format!("exec 9>\"$PIPE\"; {told}; echo ready >&9; exec sleep 1000"));
        let launch = launch.env("PIPE", fifo.path()).env("MINE", "my own").env_remove("REMOVED");
        let running = launch.spawn().unwrap();
        assert_eq!(heard.lines(5), ["ready"; 5]);
        running.stop();
        let outcome = ended(running);
        let mut secrets = BTreeSet::new();
        let mut clusters = Vec::new();
        for task in &outcome.tasks {
            let lines = said.of(&task.task);
            let config: TfConfig = lines[0].parse().unwrap();
            config.validate().unwrap();
            assert_eq!(config.task(), Some(task.task.clone()));
            let (secret, rest) = lines[1].split_once(' ').unwrap();
            assert_eq!(rest, "0 my own none");
            secrets.insert(secret.to_string());
            clusters.push(config.cluster);
        }
        assert_eq!(secrets.len(), 1);
        assert_eq!(secrets.first().unwrap().len(), 64);
        assert!(clusters.iter().all(|cluster| *cluster == clusters[0]));
        let addresses: BTreeSet<_> = clusters[0].tasks().map(|(_, address)| address.to_string()).collect();
        assert_eq!(addresses.len(), 4, "{addresses:?}");
    });
}

#[test]
fn the_secret_is_in_no_command_line_and_no_output() {
    watched(|| {
        let plan = Plan::new(&Layout::new(2)).unwrap();
        let secret = plan.secret().to_hex();
        let all =
            r#"for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done; echo "${#DISTRIBUTE_SECRET}""#;
        let said = Said::default();
        let shown = format!("{plan:?}");
        let launch = said.keep(Launch::new(plan).command("sh", ["-c", &format!("({all}) 2>&1")]));
        assert!(ended(launch.spawn().unwrap()).is_success());
        let text = said.all();
        assert!(text.contains("distribute-launch") && text.contains("\n64\n"), "{text}");
        assert!(!text.contains(&secret) && !shown.contains(&secret));
    });
}

#[test]
fn lines_stay_complete_for_every_way_to_write_them() {
    watched(|| {
        let (a, b) = (Fifo::new(), Fifo::new());
        // Worker 0 begins a line, worker 1 writes one meanwhile, worker 0 ends its own.
        let text = r#"case $TF_CONFIG in
            *'"index":0'*) printf 'first '; echo >"$A"; read go <"$B"; printf 'half\nlast, without end';;
            *) read go <"$A"; printf 'between\n' ; printf 'err' >&2; echo >"$B";;
        esac"#;
        let (launch, said) = script(&Layout::new(2), text);
        let launch = launch.env("A", a.path()).env("B", b.path());
        assert!(ended(launch.spawn().unwrap()).is_success());
        assert_eq!(said.of(&worker(0)), ["first half", "last, without end"]);
        let mut second = said.of(&worker(1));
        second.sort();
        assert_eq!(second, ["between", "err"]);
        assert_eq!(said.on(Stream::Err), ["err"]);
    });
}

#[test]
fn nothing_that_a_task_writes_before_its_end_is_lost() {
    watched(|| {
        let lines = "i=0; while [ $i -lt 5000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done";
        for (end, code) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
            let (launch, said) = script(&Layout::new(1), &format!("{lines}; {end}"));
            let outcome = ended(launch.spawn().unwrap());
            assert_eq!(outcome.exit_code(), code);
            assert_eq!(said.on(Stream::Out).len(), 5000);
            assert_eq!(said.on(Stream::Err).last().unwrap(), "error 4999");
            assert_eq!(outcome.tasks[0].last_error_line.as_deref(), Some("error 4999"));
        }
    });
}

#[test]
fn children_of_a_task_may_write_their_last_output() {
    watched(|| {
        for _ in 0..20 {
            let (launch, said) = script(&Layout::new(1), "echo late & exit 0");
            assert!(ended(launch.spawn().unwrap()).is_success());
            assert_eq!(said.of(&worker(0)), ["late"]);
        }
    });
}

#[test]
fn a_slow_reader_loses_nothing() {
    watched(|| {
        let plan = Plan::new(&Layout::new(1)).unwrap();
        let (free, wait) = channel::<()>();
        let (heard, wait) = (Arc::new(Mutex::new(0)), Mutex::new(wait));
        let count = heard.clone();
        let launch = Launch::new(plan).command("sh", ["-c", "echo one; echo two"]).output(move |output| {
            if let Output::Line { .. } = output {
                let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
                *count.lock().unwrap() += 1;
            }
        });
        let mut running = launch.spawn().unwrap();
        // Longer than the launcher waits for the output of a process that has left its task.
        assert!(running.wait(Deadline::after(Duration::from_secs(4))).is_err());
        drop(free);
        assert!(ended(running).is_success());
        assert_eq!(*heard.lock().unwrap(), 2);
    });
}

#[test]
fn a_line_without_end_is_split() {
    watched(|| {
        let (launch, said) = script(&Layout::new(1), r"head -c 150000 /dev/zero | tr '\0' x");
        assert!(ended(launch.spawn().unwrap()).is_success());
        let lengths: Vec<_> = said.of(&worker(0)).iter().map(String::len).collect();
        assert_eq!(lengths, [65536, 65536, 150_000 - 2 * 65536]);
    });
}

#[test]
fn the_first_failed_task_is_named_and_the_others_are_stopped() {
    watched(|| {
        let fifo = Fifo::new();
        let heard = fifo.read();
        // Each of the others has a child that ignores SIGTERM.
        let text = r#"exec 9>"$PIPE"; case $TF_CONFIG in
            *'"worker","index":1'*) echo ready >&9; read go <"$GO"; echo 'no more data' >&2; exit 3;;
            *) (trap '' TERM; echo child >&9; sleep 1000) & echo ready >&9; wait;;
        esac"#;
        let go = Fifo::new();
        let (launch, said) = script(&Layout::new(3).ps(1), text);
        let launch = launch.env("PIPE", fifo.path()).env("GO", go.path());
        let running = launch.spawn().unwrap();
        let ready = heard.lines(7);
        assert_eq!(ready, ["child", "child", "child", "ready", "ready", "ready", "ready"]);
        std::fs::write(go.path(), "\n").unwrap();
        let outcome = ended(running);
        assert_eq!(heard.end(), [] as [&str; 0]);
        assert_eq!(outcome.cause, Cause::Failed(1));
        assert_eq!(outcome.exit_code(), 3);
        let first = outcome.first_failure().unwrap();
        assert_eq!((&first.task, &first.end, first.stopped), (&worker(1), &Some(End::Exited(3)), false));
        for other in [worker(0), worker(2), Job::Ps.task(0)] {
            let other = outcome.task(&other).unwrap();
            assert_eq!((&other.end, other.stopped, other.killed), (&Some(End::Signaled(15)), true, false));
        }
        let summary = said.notices().pop().unwrap();
        assert!(summary.starts_with("worker 1 failed first: exit code 3 after "), "{summary}");
        let rest = "; its last line on standard error: no more data; stopped because of it: worker 0, \
                    worker 2, ps 0";
        assert!(summary.ends_with(rest), "{summary}");
    });
}

#[test]
fn a_signal_that_ends_a_task_is_named() {
    watched(|| {
        for (signal, code, words) in
            [("KILL", 137, "signal 9 (SIGKILL"), ("SEGV", 139, "signal 11 (SIGSEGV)")]
        {
            let (launch, said) = script(&Layout::new(1), &format!("kill -{signal} $$"));
            assert_eq!(ended(launch.spawn().unwrap()).exit_code(), code);
            let summary = said.notices().pop().unwrap();
            assert!(summary.contains(words) && summary.ends_with("no other task was running"), "{summary}");
        }
    });
}

// INV-30
#[test]
fn a_task_that_ignores_signals_is_killed_with_its_children() {
    watched(|| {
        let fifo = Fifo::new();
        let heard = fifo.read();
        let text = r#"exec 9>"$PIPE"; trap '' TERM; sleep 1000 & echo ready >&9; case $TF_CONFIG in
            *'"worker","index":0'*) read go <"$GO"; exit 0;; *) while :; do wait; done;; esac"#;
        let (launch, _) = script(&Layout::new(1).ps(1), text);
        let go = Fifo::new();
        let launch = launch.env("PIPE", fifo.path()).env("GO", go.path()).grace(Duration::from_millis(50));
        let running = launch.spawn().unwrap();
        assert_eq!(heard.lines(2), ["ready", "ready"]);
        std::fs::write(go.path(), "\n").unwrap();
        let outcome = ended(running);
        assert_eq!(heard.end(), [] as [&str; 0]);
        assert!(outcome.is_success());
        let ps = outcome.task(&Job::Ps.task(0)).unwrap();
        assert_eq!((&ps.end, ps.stopped, ps.killed), (&Some(End::Signaled(9)), true, true));
        assert!(
            outcome.to_string().ends_with("; killed because they did not exit within 50 ms: ps 0"),
            "{outcome}"
        );
    });
}

#[test]
fn a_process_that_left_its_task_does_not_delay_the_exit() {
    watched(|| {
        // It holds the task's output, and nothing reaches it any more.
        let (launch, said) = script(&Layout::new(1), "setsid sleep 1000 & echo $!; exit 4");
        let outcome = ended(launch.spawn().unwrap());
        assert_eq!(outcome.exit_code(), 4);
        let left = said.of(&worker(0)).remove(0);
        assert!(std::process::Command::new("kill").args(["-KILL", &left]).status().unwrap().success());
    });
}

#[test]
fn a_failed_task_is_started_again_as_often_as_it_may() {
    watched(|| {
        let text = r#"case $TF_CONFIG in *'"worker","index":1'*)
            echo "start $DISTRIBUTE_RESTART"; [ "$DISTRIBUTE_RESTART" = 2 ] || exit 5;; esac"#;
        let (launch, said) = script(&Layout::new(2), text);
        let outcome = ended(launch.max_restarts(2).spawn().unwrap());
        assert!(outcome.is_success(), "{outcome}");
        assert_eq!(said.of(&worker(1)), ["start 0", "start 1", "start 2"]);
        assert_eq!(outcome.tasks.iter().map(|task| task.restarts).collect::<Vec<_>>(), [0, 2]);
        let notices: Vec<_> = said.notices().into_iter().filter(|text| text.contains("restart ")).collect();
        assert_eq!(notices.len(), 2);
        assert!(notices[0].starts_with("worker 1: exit code 5 after "), "{notices:?}");
        assert!(notices[0].ends_with("; restart 1 of 2 in 1 ms"), "{notices:?}");
        assert!(notices[1].ends_with("; restart 2 of 2 in 2 ms"), "{notices:?}");

        let (launch, said) = script(&Layout::new(2), text);
        let outcome = ended(launch.max_restarts(1).spawn().unwrap());
        assert_eq!(outcome.exit_code(), 5);
        let summary = said.notices().pop().unwrap();
        assert!(
            summary.contains("worker 1 failed first: exit code 5") && summary.contains("restarted once"),
            "{summary}"
        );
    });
}

#[test]
fn a_task_is_started_again_when_nothing_is_left_of_it() {
    watched(|| {
        // What it has started holds a lock.
        let text = r#"exec 8>"$LOCK"; flock -n 8 && echo free || echo held; sleep 1000 & [ "$DISTRIBUTE_RESTART" = 3 ]"#;
        let (launch, said) = script(&Layout::new(1), text);
        let folder = tempfile::tempdir().unwrap();
        let launch = launch.env("LOCK", folder.path().join("lock")).max_restarts(3);
        assert!(ended(launch.spawn().unwrap()).is_success());
        assert_eq!(said.of(&worker(0)), ["free"; 4]);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn each_worker_has_separate_cores_if_there_are_enough() {
    watched(|| {
        let cores = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; echo rayon ${RAYON_NUM_THREADS-unset}";
        let all = std::thread::available_parallelism().unwrap().get();
        let seen = |layout: &Layout, pin| {
            let (launch, said) = script(layout, cores);
            let launch = launch.env_remove("RAYON_NUM_THREADS");
            let launch = if pin { launch } else { launch.without_pinning() };
            let outcome = ended(launch.spawn().unwrap());
            outcome.tasks.iter().map(|task| said.of(&task.task)).collect::<Vec<_>>()
        };
        let unpinned = seen(&Layout::new(1), false).remove(0).remove(0);
        let two = seen(&Layout::new(2), true);
        if all >= 2 {
            assert_ne!(two[0][0], two[1][0]);
            assert!(two.iter().all(|told| told[0] != unpinned), "{two:?}");
            if all == 2 {
                assert!(two.iter().all(|told| told[0].parse::<usize>().is_ok()), "{two:?}");
                assert!(two.iter().all(|told| told[1] == "rayon 1"), "{two:?}");
            }
        }
        let too_many = seen(&Layout::new(all + 1), true);
        assert!(too_many.iter().all(|told| *told == [unpinned.clone(), "rayon 1".into()]), "{too_many:?}");
        assert!(seen(&Layout::new(2), false).iter().all(|told| told[0] == unpinned));
        // One task has all of them, and makes as many threads as it likes.
        assert_eq!(seen(&Layout::new(1), true), [[unpinned.clone(), "rayon unset".into()]]);
        // The launcher's own thread is where it was.
        assert_eq!(seen(&Layout::new(1), false)[0][0], unpinned);
    });
}

#[test]
fn settings_of_threads_are_the_users() {
    watched(|| {
        let (launch, said) = script(&Layout::new(64), "echo $RAYON_NUM_THREADS");
        assert!(ended(launch.env("RAYON_NUM_THREADS", "7").spawn().unwrap()).is_success());
        assert_eq!(said.on(Stream::Out), ["7"; 64]);
    });
}

#[test]
fn commands_that_cannot_start_are_named_before_any_runs() {
    watched(|| {
        let launch = || Launch::new(Plan::new(&Layout::new(2)).unwrap());
        let none: [&str; 0] = [];
        let error = |launch: Launch| launch.output(|_| ()).spawn().map(|_| ()).unwrap_err();
        let found = error(launch().command("no-such-command", none));
        assert!(
            matches!(&found, Error::CommandNotFound { task, command, .. } if *task == worker(0) && command == "no-such-command")
        );
        assert!(error(launch()).to_string().contains("after --"));
        let error = error(launch().command("sh", ["-c", "exit"]).folder("/no/such/folder"));
        assert_eq!(
            error.to_string(),
            "the folder /no/such/folder in which the tasks are to run does not exist"
        );
    });
}

#[test]
fn a_job_that_takes_too_long_is_stopped() {
    watched(|| {
        let (launch, _) = script(&Layout::new(2), "sleep 1000");
        let outcome = ended(launch.timeout(Some(Duration::from_millis(50))).spawn().unwrap());
        assert_eq!(outcome.exit_code(), 124);
        assert_eq!(outcome.to_string(), "timed out after 50 ms, the --timeout; stopped: worker 0, worker 1");
    });
}

#[test]
fn running_tasks_can_be_signalled_and_waited_for() {
    watched(|| {
        let fifo = Fifo::new();
        let heard = fifo.read();
        let text = r#"exec 9>"$PIPE"; trap 'echo again >&9' USR1; echo $$ >&9; while :; do sleep 1000 & wait $!; done"#;
        let (launch, _) = script(&Layout::new(2), text);
        let mut running = launch.env("PIPE", fifo.path()).spawn().unwrap();
        let mut pids: Vec<_> = (0..2).map(|task| running.pid(&worker(task)).unwrap().to_string()).collect();
        pids.sort();
        assert_eq!(heard.lines(2), pids);
        running.kill(&worker(1), Signal::User1).unwrap();
        assert_eq!(heard.line(), "again");
        let patience = Duration::from_millis(1);
        assert!(
            matches!(running.wait(Deadline::after(patience)), Err(Error::StillRunning(after)) if after == patience)
        );
        assert!(matches!(running.kill(&worker(2), Signal::Kill), Err(Error::NotRunning { .. })));
        running.kill(&worker(1), Signal::Kill).unwrap();
        let outcome = running.wait(Deadline::after(PATIENCE)).unwrap();
        assert_eq!((outcome.cause.clone(), outcome.exit_code()), (Cause::Failed(1), 137));
        assert!(matches!(running.kill(&worker(0), Signal::Kill), Err(Error::NotRunning { .. })));
        assert_eq!(heard.end(), [] as [&str; 0]);
        assert_eq!(running.wait(Deadline::after(PATIENCE)).unwrap(), outcome);
    });
}

#[test]
fn a_job_can_be_stopped_and_one_that_is_dropped_is_killed() {
    watched(|| {
        for stop in [true, false] {
            let fifo = Fifo::new();
            let heard = fifo.read();
            let text = r#"exec 9>"$PIPE"; trap 'echo asked >&9; exit 0' TERM; echo ready >&9; while :; do sleep 1000 & wait $!; done"#;
            let (launch, _) = script(&Layout::new(2), text);
            let running = launch.env("PIPE", fifo.path()).spawn().unwrap();
            assert_eq!(heard.lines(2), ["ready", "ready"]);
            if stop {
                running.stop();
                let outcome = ended(running);
                assert_eq!(outcome.cause, Cause::Interrupted(Signal::Terminate));
                assert_eq!(outcome.exit_code(), 143);
                assert_eq!(heard.end(), ["asked", "asked"]);
            } else {
                drop(running);
                heard.end();
            }
        }
    });
}

#[test]
fn a_command_has_no_untracked_children() {
    watched(|| {
        // The guard is a grandchild, which `wait` in a shell does not report, so children are counted.
        let text =
            "grep -l \"^PPid:[[:space:]]*$$\\$\" /proc/[0-9]*/status 2>/dev/null | grep -v \"/$$/\" | wc -l";
        let (launch, said) = script(&Layout::new(1), text);
        assert!(ended(launch.spawn().unwrap()).is_success());
        // The pipeline itself has up to three processes at this time.
        let children: usize = said.of(&worker(0))[0].trim().parse().unwrap();
        assert!(children <= 3, "{children}");
        assert!(split_words("a b").is_some());
    });
}

/// Checks a job of a chief, two workers that it drives, and a parameter server, in which worker 1 is killed or
/// suspended, and the chief exits.
#[test]
fn a_worker_that_is_lost_or_suspended_while_the_chief_exits_does_not_delay_the_exit() {
    watched(|| {
        for (signal, restarts) in [(Signal::Kill, 3), (Signal::Stop, 0)] {
            let (fifo, go) = (Fifo::new(), Fifo::new());
            let heard = fifo.read();
            // Workers would wait for the chief's lease, so the test lets worker 0 exit together with the chief.
            let text = r#"exec 9>"$PIPE"; case $TF_CONFIG in
                *'"type":"chief"'*) echo ready >&9; read go <"$GO"; exit 0;;
                *'"worker","index":0'*) echo ready >&9; read go <"$GO"; exit 0;;
                *) echo ready >&9; exec sleep 1000;; esac"#;
            let (launch, said) = script(&Layout::new(2).with_chief().ps(1), text);
            let launch =
                launch.env("PIPE", fifo.path()).env("GO", go.path()).grace(Duration::from_millis(50));
            let running = launch.max_restarts(restarts).spawn().unwrap();
            assert_eq!(heard.lines(4), ["ready"; 4]);
            running.kill(&worker(1), signal).unwrap();
            if signal == Signal::Kill {
                // Its next process.
                assert_eq!(heard.line(), "ready");
            }
            let _go = go.release(2);
            let outcome = ended(running);
            assert!(outcome.is_success(), "{outcome}");
            let last = outcome.task(&worker(1)).unwrap();
            assert_eq!((&last.end, last.stopped, last.killed), (&Some(End::Signaled(15)), true, false));
            let why = if signal == Signal::Kill { "was restarted just before" } else { "is suspended" };
            let told = format!("worker 1 is asked to exit: the chief has succeeded, and it {why}");
            assert!(said.notices().contains(&told), "{:?}", said.notices());
        }
    });
}

/// The child of a task writes forever, in the task's process group or outside it, slowly or faster than it is read.
#[test]
fn a_process_that_keeps_writing_does_not_delay_the_exit() {
    watched(|| {
        let (launch, _) = script(&Layout::new(1), "yes & exit 4");
        assert_eq!(ended(launch.spawn().unwrap()).exit_code(), 4);
        let fifo = Fifo::new();
        let heard = fifo.read();
        let flood = r#"exec yes "$(printf %1000s x)""#;
        let slowly = "while :; do echo .; read x </dev/null; sleep 0.1; done";
        let running = [flood, &format!("{flood} >&2"), slowly].map(|writes| {
            // It has left the group when there is a group of its number. Until then the task's end would end it.
            let has_left = r#"until kill -0 "-$!" 2>/dev/null; do sleep 0.01; done"#;
            let (launch, _) = script(
                &Layout::new(1),
                &format!("setsid sh -c 'exec 9>\"$PIPE\"; echo $$ >&9; {writes}' & {has_left}; exit 5"),
            );
            let read_slowly = |_: Output<'_>| {
                std::hint::black_box((0..2000).fold(0_u64, |sum, n| std::hint::black_box(sum + n)));
            };
            launch.env("PIPE", fifo.path()).output(read_slowly).spawn().unwrap()
        });
        let ends = running.map(|running| ended(running).exit_code());
        let kill = std::process::Command::new("kill").arg("-KILL").args(heard.lines(3)).status();
        assert!(kill.unwrap().success());
        assert_eq!(ends, [5; 3]);
    });
}
