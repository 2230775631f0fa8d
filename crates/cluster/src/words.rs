//! Phrases about jobs, tasks and GPUs in error messages.

use crate::Job;

/// Lists jobs: `chief, ps and worker`.
pub(crate) fn names(jobs: &[Job]) -> String {
    list(&jobs.iter().map(Job::as_str).collect::<Vec<_>>())
}

/// Lists the indices of tasks: `tasks 0 to 3`, `tasks 0, 2 and 5`, `no task`. A list with gaps is shortened to its
/// first eight tasks.
pub(crate) fn tasks(indices: &[usize]) -> String {
    match indices {
        [] => "no task".into(),
        [one] => format!("task {one} alone"),
        [0, .., last] if *last == indices.len() - 1 => format!("tasks 0 to {last}"),
        some => {
            // Eight are enough to see the gaps.
            let shown: Vec<String> = some.iter().take(8).map(usize::to_string).collect();
            let more = some.len() - shown.len();
            let end = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("tasks {}{end}", if more > 0 { shown.join(", ") } else { list(&shown) })
        }
    }
}

/// Formats the number of GPUs per task: `2 GPUs`. Returns `a GPU` for 0, because not even one could be provided.
pub(crate) fn gpus_each(each: usize) -> String {
    match each {
        0 => "a GPU".into(),
        1 => "1 GPU".into(),
        more => format!("{more} GPUs"),
    }
}

/// Formats the number of ranks on this host: `2 of them here, `. Returns an empty string for `None`.
pub(crate) fn here(local: &Option<usize>) -> String {
    local.map_or(String::new(), |local| format!("{local} of them here, "))
}

/// Describes the missing part of a task: its job, its index, or both.
pub(crate) fn missing(job: Option<&Job>, index: Option<usize>) -> &'static str {
    match (job, index) {
        (None, None) => "the task",
        (None, Some(_)) => "the type of the task",
        _ => "the index of the task",
    }
}

/// Joins items: `a, b and c`.
fn list<T: AsRef<str>>(items: &[T]) -> String {
    match items {
        [] => "none".into(),
        [one] => one.as_ref().into(),
        [first @ .., last] => {
            format!("{} and {}", first.iter().map(T::as_ref).collect::<Vec<_>>().join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_of_a_job_are_summarized() {
        assert_eq!(tasks(&[]), "no task");
        assert_eq!(tasks(&[0]), "task 0 alone");
        assert_eq!(tasks(&[0, 1, 2]), "tasks 0 to 2");
        assert_eq!(tasks(&[0, 2]), "tasks 0 and 2");
        let many: Vec<usize> = (1..=10).collect();
        assert_eq!(tasks(&many), "tasks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
        assert_eq!(names(&[]), "none");
    }
}
