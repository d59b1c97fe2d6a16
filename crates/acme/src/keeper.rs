//! The thread that orders certificates, and orders them anew before they end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;
use tracing::{error, info, warn};

use crate::Http;
use crate::authority::Authority;
use crate::issued::{Certificate, ISSUED};
use crate::order::{self, Challenges};
use crate::storage::Storage;

/// Longest sleep: certificates that another gateway has renewed are taken from Redis then.
const LONGEST: Duration = Duration::from_secs(3600);
/// Shortest sleep between two renewals.
const SHORTEST: Duration = Duration::from_secs(1);
/// Time after which a name is looked for again that another gateway orders.
const ELSEWHERE: Duration = Duration::from_secs(2);

/// Accounts with authorities of this process, by directory and address.
type Accounts = Rc<RefCell<HashMap<(String, String), Json>>>;

/// Means of the thread.
struct Means {
    http: Http,
    begin: Box<dyn Fn() + Send + Sync>,
}

static MEANS: OnceLock<Means> = OnceLock::new();

pub(crate) fn serve(http: Http, begin: Box<dyn Fn() + Send + Sync>) {
    // The first one counts.
    let _ = MEANS.set(Means { http, begin });
}

/// Starts the thread, where there is none yet and this process orders certificates at all.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let Some(means) = MEANS.get() else { return };
    if STARTED.swap(true, Relaxed) {
        return;
    }
    let run = move || {
        (means.begin)();
        if let Err(error) = weir_runtime::block_on(keep(&means.http)) {
            error!(%error, "certificates are not ordered");
        }
    };
    if let Err(error) = thread::Builder::new().name("weir-acme".into()).spawn(run) {
        STARTED.store(false, Relaxed);
        error!(%error, "certificates are not ordered: no thread can be started");
    }
}

async fn keep(http: &Http) {
    let accounts = Accounts::default();
    loop {
        for name in ISSUED.begin() {
            weir_runtime::spawn(obtain(name, Rc::clone(&accounts), Arc::clone(http)));
        }
        let pause = ISSUED.until_due().map_or(LONGEST, |due| due.clamp(SHORTEST, LONGEST));
        // The time has come, or a name is asked for: both are looked for above.
        let _ = weir_runtime::timeout(pause, ISSUED.asked.notified()).await;
    }
}

/// Takes a certificate from the storage or orders it.
async fn obtain(name: Box<str>, accounts: Accounts, http: Http) {
    let Some(authority) = ISSUED.authority(&name) else { return ISSUED.forget(&name) };
    let storage = Storage::of(&authority);
    let obtained = match &storage {
        Some(storage) => from_storage(&name, &authority, storage, &accounts, &http).await,
        None => ordered(&name, &authority, None, &accounts, &http).await.map(|(certificate, ..)| Some(certificate)),
    };
    match obtained {
        Ok(Some(certificate)) => ISSUED.put(&name, certificate),
        Ok(None) => ISSUED.failed(&name, "another gateway orders it".to_owned(), ELSEWHERE),
        Err(reason) => {
            let minutes = authority.pause.as_secs_f64() / 60.0;
            warn!(
                name = &*name,
                authority = authority.directory,
                "no certificate: {reason}; tried again in {minutes} minutes"
            );
            ISSUED.failed(&name, reason, authority.pause);
        }
    }
    // The next renewal may be the first one now.
    ISSUED.asked.notify_one();
}

/// Takes a certificate from where it is kept, or orders it for all gateways; `None` while another one orders it.
async fn from_storage(
    name: &str,
    authority: &Authority,
    storage: &Storage<'_>,
    accounts: &Accounts,
    http: &Http,
) -> Result<Option<Certificate>, String> {
    if let Some((cert, key)) = storage.certificate(name).await? {
        match Certificate::read(authority, &cert, &key) {
            Ok(certificate) if certificate.is_fresh() => return Ok(Some(certificate)),
            Ok(_) => {}
            Err(reason) => warn!(name, "a certificate that was kept is of no use: {reason}"),
        }
    }
    if !storage.lock(name).await? {
        return Ok(None);
    }
    let ordered = ordered(name, authority, Some(storage), accounts, http).await;
    let kept = match &ordered {
        Ok((_, cert, key)) => storage.put_certificate(name, cert, key).await,
        Err(_) => Ok(()),
    };
    for failed in [kept, storage.unlock(name, ordered.is_err()).await].into_iter().filter_map(Result::err) {
        warn!(name, "this certificate is not kept: {failed}");
    }
    ordered.map(|(certificate, ..)| Some(certificate))
}

/// Orders a certificate: it, its text and that of its key.
async fn ordered(
    name: &str,
    authority: &Authority,
    storage: Option<&Storage<'_>>,
    accounts: &Accounts,
    http: &Http,
) -> Result<(Certificate, String, String), String> {
    let place = (authority.directory.clone(), authority.email.clone());
    let mut account = accounts.borrow().get(&place).cloned();
    if let (None, Some(storage)) = (&account, storage) {
        account = storage.account().await?;
    }
    let known = account.clone();
    let result = order::order(name, authority, &mut account, &Challenges(storage), http).await;
    if let Some(account) = account
        && known.as_ref() != Some(&account)
    {
        if let Some(storage) = storage {
            storage.put_account(&account).await?;
        }
        accounts.borrow_mut().insert(place, account);
    }
    let (cert, key) = result?;
    let certificate = Certificate::read(authority, &cert, &key)?;
    info!(name, authority = authority.directory, "a certificate was issued");
    Ok((certificate, cert, key))
}
