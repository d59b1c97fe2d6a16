//! `/proxy-cache`: entries of the plugin `proxy-cache`.

use hyper::{Method, StatusCode};
use weir_plugins::kong::{cached_entry, remove_all_cached, remove_cached};

use crate::entities::Entities;
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds;

/// Answers for what is behind `/proxy-cache`: nothing, a key, or the id of a plugin, `caches` and a key.
pub(crate) async fn entries(path: &[&str], method: &Method, entities: &Entities) -> Outcome {
    let plugin = |id: &str| kinds::named("plugins").and_then(|(number, _)| entities.get(number, id));
    let key = match path {
        [] if *method == Method::DELETE => {
            blocking(remove_all_cached).await?;
            return Ok(empty(StatusCode::NO_CONTENT));
        }
        [] => return Err(fault::wrong_method()),
        [key] => (*key).to_owned(),
        [id, "caches", key] if plugin(id).is_some_and(|plugin| plugin["name"] == "proxy-cache") => (*key).to_owned(),
        _ => return Err(fault::not_found()),
    };
    match *method {
        Method::GET | Method::HEAD => match blocking(move || cached_entry(&key)).await? {
            Some(entry) => Ok(answer(StatusCode::OK, &entry)),
            None => Err(fault::not_found()),
        },
        Method::DELETE => match blocking(move || remove_cached(&key)).await? {
            true => Ok(empty(StatusCode::NO_CONTENT)),
            false => Err(fault::not_found()),
        },
        _ => Err(fault::wrong_method()),
    }
}

/// Asks the caches on a thread that may wait for Redis.
async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, weir_admin::FamilyAnswer> {
    let asked = tokio::task::spawn_blocking(ask).await.unwrap_or_else(|_| Err("it has failed".to_owned()));
    asked.map_err(|reason| fault::message(StatusCode::INTERNAL_SERVER_ERROR, &reason))
}
