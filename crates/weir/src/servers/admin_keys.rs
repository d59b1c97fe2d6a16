//! The keys of the Admin API: those from the settings, and those generated at the first start.
//!
//! Only the digest of a key is stored, in `admin-keys.json` of the data directory. To replace a lost key, delete that file
//! or set a key in the settings.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use weir_admin::{KeyDigest, Keys, Role, key_digest, new_key};
use weir_config::Settings;
use weir_config::settings::AdminRole;

const FILE: &str = "admin-keys.json";

/// Content of the file: the SHA-256 digests of the keys, in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    viewer_sha256: Option<String>,
}

/// Newly generated keys, which are shown only once.
#[derive(PartialEq, Eq)]
pub(crate) struct Made {
    admin: String,
    viewer: String,
    /// File of their digests; `None` if the keys are valid for this process only.
    file: Option<PathBuf>,
}

/// Collects the keys of the API, and generates missing ones. `folder` is the data directory, if there is one.
///
/// # Errors
/// A setting is invalid, or keys cannot be generated.
pub(crate) fn settle(settings: &Settings, folder: Option<&Path>) -> anyhow::Result<(Keys, Option<Made>)> {
    let admin = &settings.admin;
    if !admin.key_required {
        return Ok((Keys::none_required(), None));
    }
    let mut keys = Keys::default();
    for (at, key) in admin.keys.iter().enumerate() {
        if key.key.expose().is_empty() {
            bail!("admin.keys[{at}].key: a key may not be empty");
        }
        let role = match key.role {
            AdminRole::Admin | AdminRole::Owner => Role::Admin,
            AdminRole::Operator => Role::Operator,
            AdminRole::Viewer => Role::Viewer,
            AdminRole::None => bail!(
                "the role of the key {:?} (admin.keys, or deployment.admin.admin_key in a config.yaml) is neither admin \
                 nor viewer: give it one, or turn the Admin API off with listen.admin: off",
                key.name
            ),
        };
        keys.add_of_team(&key.name, role, key.team.as_deref(), key_digest(key.key.expose()));
    }
    let file = folder.map(|folder| folder.join(FILE));
    let (before, readable) = match file.as_deref().map(read) {
        None => (None, true),
        Some(Ok(kept)) => (kept, true),
        // The gateway serves nevertheless. A key that cannot be read gives access to nobody.
        Some(Err(error)) => {
            tracing::error!("{error:#}; delete the file to generate new keys");
            (None, false)
        }
    };
    let (admin_key, viewer_key) = (admin.key.expose(), settings.viewer.key.expose());
    let given = |key: &str| (!key.is_empty()).then(|| hex(&key_digest(key)));
    let mut kept = before.clone().unwrap_or_default();
    kept.admin_sha256 = given(admin_key).or(kept.admin_sha256);
    kept.viewer_sha256 = given(viewer_key).or(kept.viewer_sha256);
    let none_there = kept == Kept::default() && admin.keys.is_empty() && readable;
    let mut made = None;
    if none_there {
        let new = || new_key().map_err(|_| anyhow::anyhow!("no random bytes for a key of the Admin API"));
        let (admin, viewer) = (new()?, new()?);
        kept = Kept { admin_sha256: given(&admin), viewer_sha256: given(&viewer) };
        made = Some(Made { admin, viewer, file: file.clone() });
    }
    if let Some(file) = file.filter(|_| readable && Some(&kept) != before.as_ref() && kept != Kept::default())
        && let Err(error) = write(&file, &kept)
    {
        tracing::error!("cannot keep the keys of the Admin API in {}: {error}", file.display());
        if let Some(made) = &mut made {
            made.file = None;
        }
    }
    for (role, digest) in [(Role::Admin, kept.admin_sha256), (Role::Viewer, kept.viewer_sha256)] {
        match digest.as_deref().map(parse) {
            Some(Some(digest)) => keys.add(role.name(), role, digest),
            Some(None) => tracing::error!("the {} key in {FILE} is no SHA-256 digest; it opens nothing", role.name()),
            None => {}
        }
    }
    Ok((keys, made))
}

/// The content of the file; `None` if there is no file.
fn read(file: &Path) -> anyhow::Result<Option<Kept>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let kept = serde_json::from_str(&text);
    kept.map(Some).with_context(|| format!("the keys of the Admin API in {} are damaged", file.display()))
}

/// Replaces the file atomically.
fn write(file: &Path, kept: &Kept) -> io::Result<()> {
    let beside = file.with_extension("json.new");
    let mut text = serde_json::to_vec_pretty(kept)?;
    text.push(b'\n');
    let mut out = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    out.write_all(&text)?;
    out.sync_all()?;
    fs::rename(&beside, file)
}

fn hex(digest: &KeyDigest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Option<KeyDigest> {
    let mut digest = KeyDigest::default();
    if !text.is_ascii() || text.len() != 2 * digest.len() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

impl Made {
    /// Prints the keys on standard error, not in the error log, because many may read that file.
    pub(crate) fn show(&self) {
        let Self { admin, viewer, file } = self;
        let place = match file {
            Some(file) => format!("They are shown this once; {} keeps their digests.", file.display()),
            None => "They are shown this once, and hold as long as this process runs.".to_owned(),
        };
        let text = format!(
            "The Admin API has new keys. {place}\n  admin key (X-API-KEY):  {admin}\n  viewer key, which reads: {viewer}\n"
        );
        // Without a standard error there is no reader.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use weir_config::Settings;
    use weir_config::settings::SettingsSource;

    use super::{FILE, Keys, settle};

    fn settings(flags: &[(&str, &str)]) -> Settings {
        let flags: Vec<_> = flags.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        Settings::load(SettingsSource { flags: &flags, ..SettingsSource::default() }).expect("settings").0
    }

    /// True if a key gives access, judged by the digests in the debug output.
    fn opens(keys: &Keys, key: &str) -> bool {
        format!("{keys:?}").contains(&format!("{:?}", weir_admin::key_digest(key)))
    }

    #[test]
    fn keys_are_made_once_and_kept_as_digests() {
        let folder = tempfile::tempdir().unwrap();
        let (keys, made) = settle(&settings(&[]), Some(folder.path())).unwrap();
        let made = made.expect("the first start");
        assert!(opens(&keys, &made.admin) && opens(&keys, &made.viewer));
        let file = folder.path().join(FILE);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(&made.admin) && !text.contains(&made.viewer), "{text}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        let (keys, again) = settle(&settings(&[]), Some(folder.path())).unwrap();
        assert!(again.is_none() && opens(&keys, &made.admin) && opens(&keys, &made.viewer));

        // A key in the settings supersedes the generated one, and stays known at the next start.
        let (keys, again) = settle(&settings(&[("admin.key", "given")]), Some(folder.path())).unwrap();
        assert!(again.is_none() && opens(&keys, "given") && !opens(&keys, &made.admin) && opens(&keys, &made.viewer));
        let (keys, _) = settle(&settings(&[]), Some(folder.path())).unwrap();
        assert!(opens(&keys, "given"));

        // A damaged file gives access to nobody, and no new keys are generated.
        std::fs::write(&file, "{").unwrap();
        let (keys, again) = settle(&settings(&[("viewer.key", "v")]), Some(folder.path())).unwrap();
        assert!(again.is_none() && !opens(&keys, "given") && opens(&keys, "v"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{");
    }

    #[test]
    fn keys_that_are_given_are_all_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let (keys, made) = settle(&settings(&[("admin.key", "a")]), Some(folder.path())).unwrap();
        assert!(made.is_none() && opens(&keys, "a"));
        let (keys, made) = settle(&settings(&[]), None).unwrap();
        assert!(opens(&keys, &made.expect("keys for this process").admin));
        let (_, made) = settle(&settings(&[("admin.key_required", "false")]), None).unwrap();
        assert!(made.is_none());
    }
}
