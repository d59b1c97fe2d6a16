//! A folder with a file for each secret.

use std::path::{Component, Path};

use super::{Contents, MOST, Refusal};

/// The text of a file, without the line end after it. Links may lead about, but not out of the folder, and only to what
/// `allows` says yes to.
pub(super) fn read(
    directory: &Path,
    path: &str,
    allows: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<Contents, Refusal> {
    let inside = Path::new(path);
    if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(Refusal::Forbidden(format!("{path:?} leads out of the folder")));
    }
    let told = |reason: &dyn std::fmt::Display| format!("{}: {reason}", directory.join(path).display());
    let refused = |reason: &dyn std::fmt::Display| Refusal::None(told(reason));
    let forbidden = |reason: &dyn std::fmt::Display| Refusal::Forbidden(told(reason));
    let folder = directory.canonicalize().map_err(|error| refused(&error))?;
    let file = folder.join(inside).canonicalize().map_err(|error| refused(&error))?;
    if !file.starts_with(&folder) {
        return Err(forbidden(&"it leads out of the folder"));
    }
    allows(&file).map_err(|reason| forbidden(&reason))?;
    let text = weir_config::file::read(&file, MOST).map_err(|error| refused(&error))?;
    let Ok(mut text) = String::from_utf8(text) else { return Err(refused(&"it is not UTF-8 text")) };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Contents::Whole(text))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::read;
    use crate::source::secret_managers::{Contents, Refusal};

    #[test]
    fn nothing_outside_of_the_folder_is_read() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("secrets");
        fs::create_dir_all(folder.join("..data/db")).expect("a folder");
        fs::write(top.path().join("outside"), "no").expect("write");
        fs::write(folder.join("..data/db/password"), "s3cret\r\n").expect("write");
        fs::write(folder.join("two"), "a\nb\n\n").expect("write");
        fs::write(folder.join("large"), vec![b'a'; (1 << 20) + 1]).expect("write");
        fs::write(folder.join("binary"), [0xff]).expect("write");
        // As Kubernetes has it.
        symlink("..data/db", folder.join("db")).expect("a link");
        symlink("../outside", folder.join("out")).expect("a link");
        symlink(folder.join("two"), folder.join("absolute")).expect("a link");
        let cases = [
            ("db/password", Ok("s3cret")),
            ("two", Ok("a\nb\n")),
            ("absolute", Ok("a\nb\n")),
            ("../outside", Err("leads out of the folder")),
            ("db/../../outside", Err("leads out of the folder")),
            ("/etc/hostname", Err("leads out of the folder")),
            ("out", Err("leads out of the folder")),
            ("db", Err("expected a regular file, found a directory")),
            ("none", Err("No such file")),
            ("large", Err("more than the 1048576 bytes")),
            ("binary", Err("not UTF-8")),
        ];
        for (path, expected) in cases {
            match (read(&folder, path, &|_| Ok(())), expected) {
                (Ok(Contents::Whole(text)), Ok(wanted)) => assert_eq!(text, wanted, "{path}"),
                (Err(refusal), Err(wanted)) => {
                    assert!(refusal.reason().contains(wanted), "{path}: {refusal:?}");
                    let forbids = matches!(refusal, Refusal::Forbidden(_));
                    assert_eq!(forbids, wanted.contains("leads out"), "{path}: {refusal:?}");
                }
                (other, _) => panic!("{path}: {}", other.err().map_or("read".into(), |refusal| format!("{refusal:?}"))),
            }
        }
    }
}
