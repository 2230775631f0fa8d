//! The tasks that a certificate names, as pure functions.

use distribute_cluster::Task;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The scheme of a URI that names a task.
const SCHEME: &str = "distribute:";

/// Checks that the owner of a certificate may act as a task. A certificate that names no task is valid for all tasks.
///
/// # Errors
/// Returns a text for the refusal if the certificate names other tasks only, or cannot be read.
pub(crate) fn check(certificate: &CertificateDer<'_>, task: &Task) -> Result<(), String> {
    let certificate = EndEntityCert::try_from(certificate)
        .map_err(|error| format!("the certificate of {task} cannot be read: {error}"))?;
    let tasks: Vec<_> = certificate.valid_uri_names().filter_map(|name| strip_scheme(name, SCHEME)).collect();
    if tasks.is_empty() || tasks.iter().any(|name| names_task(name, task)) {
        return Ok(());
    }
    Err(not_for(&tasks, task))
}

fn not_for(named: &[&str], task: &Task) -> String {
    format!(
        "its certificate names {}, but it claims to be {task}: give each task a certificate that names it \
         (URI:{SCHEME}{}/{}), or none",
        named.join(", "),
        task.job.as_str(),
        task.index
    )
}

/// Returns the part of a URI after `scheme`, or `None` if the URI has a different scheme. Upper and lower case are
/// equal.
fn strip_scheme<'a>(name: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = name.split_at_checked(scheme.len())?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Returns whether a name such as `ps/0` is that of `task`.
fn names_task(name: &str, task: &Task) -> bool {
    name.rsplit_once('/')
        .is_some_and(|(job, index)| job == task.job.as_str() && index == task.index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::Job;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn named(uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["worker.example".to_owned()]).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    // INV-81
    #[test]
    fn a_certificate_that_names_tasks_is_of_no_other() {
        let (ps, chief) = (Job::Ps.task(1), Job::Chief.task(0));
        let may = |uris: &[&str], task: &Task| check(&named(uris), task);
        assert_eq!(may(&[], &chief), Ok(()));
        assert_eq!(may(&["https://example.org/chief/0"], &chief), Ok(()));
        assert_eq!(may(&["distribute:ps/1"], &ps), Ok(()));
        assert_eq!(may(&["distribute:ps/0", "DISTRIBUTE:chief/0"], &chief), Ok(()));
        for wrong in ["ps/1", "chief/00", "chief/0/", "chief", "", "x/chief/0", "chief%2F0"] {
            let error = may(&[&format!("distribute:{wrong}")], &chief).unwrap_err();
            assert!(error.contains("but it claims to be chief 0: give each task"), "{wrong}: {error}");
        }
        let error = may(&["distribute:worker/2"], &chief).unwrap_err();
        assert!(error.starts_with("its certificate names worker/2, but it claims"), "{error}");
        let none = CertificateDer::from(vec![1, 2, 3]);
        assert!(check(&none, &chief).unwrap_err().starts_with("the certificate of chief 0 cannot be read"));
    }
}
