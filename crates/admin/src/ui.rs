//! A folder of files at `/ui`: a dashboard that was built elsewhere, which uses this API from the same origin.
//!
//! The files are public: everybody whom `admin.allow` lets in may read them, without a key. Nothing outside the folder is
//! read, also by a link in it, and no file whose name begins with a dot. A path that is no file leads to `index.html`, since
//! applications of a single page have paths of their own.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, Method, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::answer::{Answer, Body, Outcome};

const PIECE: usize = 64 * 1024;

/// Time that a reader may take for a piece.
const PATIENCE: Duration = Duration::from_secs(30);

const INDEX: &str = "index.html";

/// Files in this folder have a digest of their content in their names.
const UNCHANGING: &str = "assets";

/// The folder.
#[derive(Clone, Debug)]
pub struct Ui(PathBuf);

/// A file that may be shown.
struct Found {
    file: File,
    path: PathBuf,
    length: u64,
    /// Its length and its last change.
    tag: String,
}

impl Ui {
    /// The files of a folder, in which there is an `index.html`.
    ///
    /// # Errors
    /// The folder or its `index.html` cannot be read.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let root = fs::canonicalize(folder)?;
        if !fs::metadata(root.join(INDEX))?.is_file() {
            return Err(io::Error::other("index.html is no file"));
        }
        Ok(Self(root))
    }

    /// Answers a request for `/ui`; `path` are the decoded segments behind it, `is_folder` is true if the path ends with `/`.
    pub(crate) async fn answer(
        &self,
        method: &Method,
        path: &[String],
        is_folder: bool,
        fields: &HeaderMap,
    ) -> Outcome {
        if method != Method::GET && method != Method::HEAD {
            let refusal = Answer::error(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are known here");
            return Err(refusal.unversioned().with(ALLOW, HeaderValue::from_static("GET, HEAD")));
        }
        if path.is_empty() && !is_folder {
            let moved = Answer::empty(StatusCode::FOUND).unversioned();
            return Ok(moved.with(LOCATION, HeaderValue::from_static("/ui/")));
        }
        let accepts_page =
            fields.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|value| value.contains("text/html")));
        let is_page = accepts_page || path.last().is_none_or(|name| !name.contains('.'));
        let (root, wanted) = (self.0.clone(), path.to_vec());
        let found = tokio::task::spawn_blocking(move || {
            let index = || open(&root, &[INDEX.to_owned()]);
            let own = if wanted.is_empty() { None } else { open(&root, &wanted) };
            own.or_else(|| if is_page { index() } else { None })
        });
        let found = found.await.map_err(|panicked| {
            tracing::error!(%panicked, "a file of admin.ui could not be opened");
            Answer::internal()
        })?;
        let found = found.ok_or_else(|| Answer::error(StatusCode::NOT_FOUND, "404 Not Found").unversioned())?;
        Ok(self.shown(found, method, fields))
    }

    fn shown(&self, found: Found, method: &Method, fields: &HeaderMap) -> Answer {
        let Found { file, path, length, tag } = found;
        let is_known = fields.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
        let is_known = is_known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
        let lasting = path.strip_prefix(&self.0).is_ok_and(|path| path.starts_with(UNCHANGING));
        let cache = if lasting { "public, max-age=31536000, immutable" } else { "no-cache" };
        let mut answer = Answer::empty(if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK }).unversioned();
        if let Ok(tag) = HeaderValue::try_from(tag) {
            answer = answer.with(ETAG, tag);
        }
        if !is_known && method == Method::GET && length > 0 {
            answer.body = Body::Stream(read(file, length), None);
        }
        answer
            .with(CONTENT_TYPE, HeaderValue::from_static(media_type(&path)))
            .with(CACHE_CONTROL, HeaderValue::from_static(cache))
            .with(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with(X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"))
    }
}

/// Opens a file below a folder.
fn open(root: &Path, segments: &[String]) -> Option<Found> {
    let is_plain = |name: &String| !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    if !segments.iter().all(is_plain) {
        return None;
    }
    let path = fs::canonicalize(segments.iter().fold(root.to_owned(), |path, name| path.join(name))).ok()?;
    // A link may lead anywhere.
    if !path.starts_with(root) || !fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let file = File::open(&path).ok()?;
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let time = metadata.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let tag = format!("\"{:x}-{:x}\"", metadata.len(), time.as_nanos());
    Some(Found { file, path, length: metadata.len(), tag })
}

/// The content of a file, a piece at a time as it is read.
fn read(file: File, length: u64) -> mpsc::Receiver<Bytes> {
    let (sender, pieces) = mpsc::channel(1);
    let mut rest = file.take(length);
    tokio::spawn(async move {
        loop {
            let reading = tokio::task::spawn_blocking(move || {
                let mut piece = Vec::with_capacity(PIECE);
                let read = rest.by_ref().take(PIECE as u64).read_to_end(&mut piece);
                (rest, read.map(|_| piece))
            });
            let Ok((file, Ok(piece))) = reading.await else {
                tracing::error!("a file of admin.ui could not be read to its end");
                return;
            };
            rest = file;
            if piece.is_empty() || !matches!(timeout(PATIENCE, sender.send(piece.into())).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    pieces
}

fn media_type(path: &Path) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}
