//! [`Repository`]: the files of a model or a dataset.

use crate::attempts::{ATTEMPTS, Attempts};
use crate::cache::Folder;
use crate::client::Client;
use crate::download::{Target, download};
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::names::Kind;
use crate::origin::display;
use crate::settings::Hub;
use crate::{index, lock, names};
use std::path::PathBuf;
use std::sync::OnceLock;
use ureq::http::Uri;

/// A model or a dataset of the hub, at a branch, tag or commit.
///
/// The first file that is requested determines the commit of the branch. All further files of this value are of the
/// same commit.
#[derive(Clone, Debug)]
pub struct Repository {
    hub: Hub,
    client: Client,
    kind: Kind,
    id: String,
    revision: String,
    commit: OnceLock<String>,
}

impl Hub {
    /// Returns the model with the given name, such as `google-bert/bert-base-uncased`, at the branch `main`. Sends no
    /// request.
    pub fn model(&self, id: impl Into<String>) -> Repository {
        Repository::new(self.clone(), Kind::Model, id.into())
    }

    /// Returns the dataset with the given name, at the branch `main`. Sends no request.
    pub fn dataset(&self, id: impl Into<String>) -> Repository {
        Repository::new(self.clone(), Kind::Dataset, id.into())
    }
}

impl Repository {
    fn new(hub: Hub, kind: Kind, id: String) -> Self {
        let client = Client::new(&hub);
        Self { hub, client, kind, id, revision: "main".into(), commit: OnceLock::new() }
    }

    /// Sets the branch, tag or commit. A commit (40 hexadecimal digits) makes a program independent of later changes of
    /// the repository, and needs no request if the cache has the file.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self.commit = OnceLock::new();
        self
    }

    /// Returns the commit of the files; `None` before the first file has been requested.
    pub fn commit(&self) -> Option<&str> {
        self.commit.get().map(String::as_str)
    }

    /// Returns the path of a file in the cache. Downloads it if the cache does not have it at the revision's commit.
    ///
    /// If the hub cannot be reached or fails temporarily, the file of the last known commit of the branch is used, with
    /// a warning, provided that the cache has it.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the name of the repository, the revision or the file is malformed.
    /// - [`Error::Status`]: the hub refuses the request, because a name or the token is wrong, there are too many
    ///   requests, or the hub has a problem.
    /// - [`Error::Network`]: there is no complete response. What has arrived is kept, and the next call resumes it.
    /// - [`Error::Response`], [`Error::Hash`], [`Error::TooLarge`]: the file is not as the hub announced it, or too
    ///   large.
    /// - [`Error::Offline`]: the cache lacks the file, and the hub must not be used.
    /// - [`Error::Busy`]: another process has the lock of the file, and makes no progress.
    /// - [`Error::Io`]: the cache cannot be read or written.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        names::repository(&self.id)?;
        names::revision(&self.revision)?;
        names::file(name)?;
        let folder = Folder::new(&self.hub.cache, self.kind, &self.id);
        let fixed = || names::is_commit(&self.revision).then(|| self.revision.clone());
        let exact = self.commit.get().cloned().or_else(fixed);
        let cached = exact.clone().or_else(|| folder.commit(&self.revision));
        let cached = cached.and_then(|commit| folder.find(&commit, name).map(|path| (commit, path)));
        match cached {
            Some((commit, path)) if exact.is_some() || self.hub.is_offline => self.of(commit, path, name),
            None if self.hub.is_offline => Err(Error::Offline {
                repository: self.id.clone(),
                revision: self.revision.clone(),
                file: name.into(),
                cache: self.hub.cache.clone(),
            }),
            cached => self.request(name, &folder, exact, cached),
        }
    }

    /// Returns the paths of the model's weights: of `model.safetensors` or, for a large model, of all files that
    /// `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// Returns the errors of [`indexed`](Self::indexed).
    pub fn safetensors(&self) -> Result<Vec<PathBuf>> {
        match self.file("model.safetensors") {
            Ok(path) => Ok(vec![path]),
            Err(error) if error.is_absent() => self.indexed("model.safetensors.index.json"),
            Err(error) => Err(error),
        }
    }

    /// Returns the paths of all files that an index of weights lists. Their names are relative to the index's folder in
    /// the repository.
    ///
    /// # Errors
    /// - [`Error::Index`]: the index is malformed.
    /// - The errors of [`file`](Self::file), of the index and of each file.
    pub fn indexed(&self, name: &str) -> Result<Vec<PathBuf>> {
        let path = self.file(name)?;
        let folder = name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let files = index::files(&path)?;
        // Before the first of them is downloaded.
        files.iter().try_for_each(|file| names::file(file))?;
        files.iter().map(|file| self.file(&format!("{folder}{file}"))).collect()
    }

    /// Requests a file, at the commit `exact` if there is one. `cached` is the commit and the path of the file in the
    /// cache; that file is used if the hub fails temporarily.
    fn request(
        &self,
        name: &str,
        folder: &Folder,
        exact: Option<String>,
        cached: Option<(String, PathBuf)>,
    ) -> Result<PathBuf> {
        let url = self.url(exact.as_deref().unwrap_or(&self.revision), name)?;
        let metadata = match (self.metadata(&url, cached.is_some()), cached) {
            (Err(error), Some((commit, path))) if error.is_temporary() => {
                distribute_log::warn_or_stderr(|| {
                    tracing::warn!("{}; the cache has the file of {commit}, which is used", error.brief())
                });
                return self.of(commit, path, name);
            }
            (metadata, _) => metadata?,
        };
        if let Some(exact) = exact.filter(|exact| *exact != metadata.commit) {
            let expected = "the commit that was requested in X-Repo-Commit";
            return Err(Error::Response {
                url: display(&url),
                expected,
                found: format!("{}, not {exact}", metadata.commit),
            });
        }
        if metadata.size > self.hub.max_size {
            return Err(Error::TooLarge {
                url: display(&url),
                size: metadata.size,
                limit: self.hub.max_size,
            });
        }
        if !folder.has(&metadata.hash, metadata.size) {
            let _lock = lock::acquire(folder, &metadata.hash, self.hub.timeout)?;
            // Another process may have downloaded it in the meantime.
            if !folder.has(&metadata.hash, metadata.size) {
                // The branch may move, the commit does not.
                let url = self.url(&metadata.commit, name)?;
                let (hash, size) = (metadata.hash.clone(), metadata.size);
                let (blob, partial) = (folder.blob(&hash), folder.partial(&hash)?);
                download(
                    &self.client,
                    &Target { url, hash, size, blob, partial, timeout: self.hub.timeout },
                )?;
            }
        }
        let path = folder.publish(&metadata.commit, name, &metadata.hash)?;
        if self.revision != metadata.commit {
            folder.remember(&self.revision, &metadata.commit)?;
        }
        self.of(metadata.commit, path, name)
    }

    /// Requests the metadata of a file. Makes a single attempt if the cache can be used instead.
    fn metadata(&self, url: &Uri, is_cached: bool) -> Result<Metadata> {
        let mut attempts = Attempts::new(if is_cached { 1 } else { ATTEMPTS }, self.hub.timeout);
        loop {
            match self.client.head(url) {
                Ok(headers) => return Metadata::parse(url, &headers),
                Err(error) => attempts.after(error)?,
            }
        }
    }

    /// Returns `path` if `commit` is the commit of this value, which the first call determines. If another thread has
    /// determined a different commit, requests the file of that commit.
    fn of(&self, commit: String, path: PathBuf, name: &str) -> Result<PathBuf> {
        if *self.commit.get_or_init(|| commit.clone()) == commit { Ok(path) } else { self.file(name) }
    }

    fn url(&self, revision: &str, name: &str) -> Result<Uri> {
        let (revision, file) = (names::encoded(revision, false), names::encoded(name, true));
        let url =
            format!("{}/{}{}/resolve/{revision}/{file}", self.hub.endpoint, self.kind.prefix(), self.id);
        url.parse().map_err(|error: ureq::http::uri::InvalidUri| Error::Invalid {
            what: "the URL",
            value: url,
            reason: error.to_string(),
        })
    }
}
