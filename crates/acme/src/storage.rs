//! Places where certificates outlive the process: a folder, or Redis under the names that Kong's plugin gives them, so that
//! several gateways, and a Kong, share them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value as Json, json};
use weir_redis::{Client, GET, REMOVE, Script, Value};

use crate::authority::{Authority, Place, Redis};
use crate::issued::now;

/// Seconds for which a gateway that orders a certificate keeps others from it.
const LOCKED: &str = "60";
/// Seconds for which the answer to a challenge is kept.
const CHALLENGED: &str = "3600";

static SET: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if ARGV[2] then return redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end \
         return redis.call('SET', KEYS[1], ARGV[1])",
    )
});
static ADD: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2])"));

/// The key of the answer to a challenge.
#[must_use]
pub fn challenge_key(namespace: &str, token: &str) -> String {
    format!("{namespace}{token}#http-01")
}

/// The folder of certificates of this gateway.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder where certificates of this gateway are kept. A second call has no effect.
pub fn set_folder(folder: PathBuf) {
    // The first one counts.
    let _ = FOLDER.set(folder);
}

/// The folder where certificates of this gateway are kept, where it has one.
#[must_use]
pub fn folder() -> Option<&'static Path> {
    FOLDER.get().map(PathBuf::as_path)
}

/// The place of an authority's certificates, its account and its challenges.
pub(crate) struct Storage<'a> {
    authority: &'a Authority,
    kept: Kept<'a>,
}

enum Kept<'a> {
    Folder(&'a Path),
    Redis(Client, &'a Redis),
}

impl<'a> Storage<'a> {
    /// The storage of an authority; `None` for one whose certificates are kept in memory.
    pub(crate) fn of(authority: &'a Authority) -> Option<Self> {
        let kept = match &authority.place {
            Place::Memory => return None,
            Place::Folder(folder) => Kept::Folder(folder),
            Place::Redis(redis) => Kept::Redis(Client::new(&redis.settings), redis),
        };
        Some(Self { authority, kept })
    }

    /// A certificate and its key.
    pub(crate) async fn certificate(&self, name: &str) -> Result<Option<(String, String)>, String> {
        let found = self.get("cert_key", name).await?;
        let part = |field: &str| found.as_ref()?.get(field)?.as_str().map(str::to_owned);
        Ok(part("cert").zip(part("key")))
    }

    /// Keeps a certificate and its key, and notes that it is to be renewed.
    pub(crate) async fn put_certificate(&self, name: &str, cert: &str, key: &str) -> Result<(), String> {
        self.put("cert_key", name, &json!({ "cert": cert, "key": key })).await?;
        let Kept::Redis(..) = &self.kept else { return Ok(()) };
        // As Kong's plugin writes it, whose certificates hold for 90 days.
        let expire_at = now().as_secs().saturating_add(90 * 86_400);
        self.put("renew_config", name, &json!({ "host": name, "expire_at": expire_at })).await
    }

    /// Keeps other gateways from ordering a certificate; false where one of them orders it already, or has failed of late.
    pub(crate) async fn lock(&self, name: &str) -> Result<bool, String> {
        let Kept::Redis(client, redis) = &self.kept else { return Ok(true) };
        if let Value::BulkString(_) = run(client, &GET, &key(redis, "fail_backoff", name), &[]).await? {
            return Ok(false);
        }
        let key = key(redis, "update_lock", name);
        let locked = client.run_once(&ADD, &key, &[b"placeholder", LOCKED.as_bytes()]).await;
        Ok(locked.map_err(away)? == Value::Okay)
    }

    /// Lets others order a certificate again: after the pause, where the order has failed.
    pub(crate) async fn unlock(&self, name: &str, has_failed: bool) -> Result<(), String> {
        let Kept::Redis(client, redis) = &self.kept else { return Ok(()) };
        if has_failed {
            let pause = self.authority.pause.as_secs().max(1);
            let until = now().as_secs().saturating_add(pause).to_string();
            let arguments: [&[u8]; 2] = [until.as_bytes(), &pause.to_string().into_bytes()];
            run(client, &SET, &key(redis, "fail_backoff", name), &arguments).await?;
        }
        run(client, &REMOVE, &key(redis, "update_lock", name), &[]).await.map(drop)
    }

    /// Keeps the answer to a challenge, which any gateway may be asked for.
    pub(crate) async fn put_challenge(&self, token: &str, answer: &str) -> Result<(), String> {
        let Kept::Redis(client, redis) = &self.kept else { return Ok(()) };
        let key = challenge_key(&redis.namespace, token);
        run(client, &SET, key.as_bytes(), &[answer.as_bytes(), CHALLENGED.as_bytes()]).await.map(drop)
    }

    pub(crate) async fn end_challenge(&self, token: &str) -> Result<(), String> {
        let Kept::Redis(client, redis) = &self.kept else { return Ok(()) };
        run(client, &REMOVE, challenge_key(&redis.namespace, token).as_bytes(), &[]).await.map(drop)
    }

    /// The account with the authority. Kong's has an RSA key, which is not signed with here, so this is another one.
    pub(crate) async fn account(&self) -> Result<Option<Json>, String> {
        self.get(ACCOUNT, &self.account_name()).await
    }

    pub(crate) async fn put_account(&self, account: &Json) -> Result<(), String> {
        self.put(ACCOUNT, &self.account_name(), account).await
    }

    fn account_name(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{} {}", self.authority.directory, self.authority.email))
    }

    async fn get(&self, kind: &str, name: &str) -> Result<Option<Json>, String> {
        let text = match &self.kept {
            Kept::Folder(folder) => match fs::read(file(folder, kind, name)?) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(format!("{}: {error}", folder.display())),
            },
            Kept::Redis(client, redis) => match run(client, &GET, &key(redis, kind, name), &[]).await? {
                Value::BulkString(text) => text,
                _ => return Ok(None),
            },
        };
        Ok(serde_json::from_slice(&text).ok())
    }

    async fn put(&self, kind: &str, name: &str, value: &Json) -> Result<(), String> {
        let text = value.to_string();
        match &self.kept {
            Kept::Folder(folder) => {
                let written = write(folder, &file(folder, kind, name)?, text.as_bytes());
                written.map_err(|error| format!("{}: {error}", folder.display()))
            }
            Kept::Redis(client, redis) => {
                run(client, &SET, &key(redis, kind, name), &[text.as_bytes()]).await.map(drop)
            }
        }
    }
}

/// Kind of accounts among what is kept.
const ACCOUNT: &str = "account";

fn key(redis: &Redis, kind: &str, name: &str) -> Vec<u8> {
    let owner = if kind == ACCOUNT { "weir_acme" } else { "kong_acme" };
    format!("{}{owner}:{kind}:{name}", redis.namespace).into_bytes()
}

async fn run(client: &Client, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Value, String> {
    client.run(script, key, arguments).await.map_err(away)
}

#[expect(clippy::needless_pass_by_value, reason = "as results hand their errors over")]
fn away(error: weir_redis::Error) -> String {
    format!("Redis does not answer: {error}")
}

/// The file of a name, which came from a client.
fn file(folder: &Path, kind: &str, name: &str) -> Result<PathBuf, String> {
    let is_good = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if is_good { Ok(folder.join(format!("{kind}-{name}.json"))) } else { Err(format!("{name:?} is no name of a file")) }
}

/// Writes a file for this user alone, as a whole or not at all.
fn write(folder: &Path, file: &Path, text: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    let part = file.with_extension("part");
    let mut open = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    open.write_all(text)?;
    open.sync_all()?;
    fs::rename(part, file)
}
