use super::head::resource;
use super::{Id, Username};

resource! {
    /// Somebody who has applications, and looks after their keys by a token. Changed by `/weir/v1/developers`.
    pub struct Developer {
        /// Address that the developer is reached at.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 3, max = 320), regex(pattern = r"^\S+@\S+$"))]
        pub email: Option<String>,
        /// SHA-256 of the token, in hexadecimal digits. Without it there is no self-service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
        pub token_sha256: Option<String>,
        /// Ids of plans that the developer may put applications on. They need not exist.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 256))]
        pub plans: Vec<Id>,
        /// Applications that the developer may have.
        #[serde(default = "ten")]
        #[schemars(range(max = 1000), extend("default" = 10))]
        pub max_applications: u32,
        /// The applications: consumers with the label `developer`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 1000))]
        pub applications: Vec<Username>,
        /// True if the token is refused. Applications and their keys go on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub suspended: bool,
    }
}

fn ten() -> u32 {
    10
}
