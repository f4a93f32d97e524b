use super::*;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const KEY: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
const NOW: u64 = 1_800_000_000_500;

fn settings() -> Settings {
    Settings::default()
}

fn secrets(token: Option<&str>, admin: Option<&str>) -> Secrets {
    Secrets {
        token_key: token.map(str::to_owned),
        admin_key: admin.map(str::to_owned),
    }
}

fn keys() -> Keys {
    let secrets = secrets(Some(KEY), Some("an-admin-key-of-22-b"));
    Keys::load(&settings(), &secrets, None).unwrap().0
}

fn kept_admin_key(dir: &Path) -> Result<String, KeyError> {
    let mut settings = settings();
    settings.store.url = format!("embedded:{}", dir.display());
    admin_key(&settings, &Secrets::default())
}

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("trove-keys-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.0.join("keys");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A token as anybody else would make it.
fn token(header: &str, payload: &str, key: &str) -> String {
    let base64 = |bytes: &[u8]| {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let digits = bytes.chunks(3).flat_map(|chunk| {
            let bits = (0..3).fold(0u32, |bits, i| {
                bits << 8 | u32::from(*chunk.get(i).unwrap_or(&0))
            });
            (0..=chunk.len()).map(move |i| DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char)
        });
        digits.collect::<String>()
    };
    let message = format!(
        "{}.{}",
        base64(header.as_bytes()),
        base64(payload.as_bytes())
    );
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    let signature = mac.chain_update(&message).finalize().into_bytes();
    format!("{message}.{}", base64(&signature))
}

fn hs256(payload: &str) -> String {
    token(r#"{"alg":"HS256"}"#, payload, KEY)
}

const PAYLOAD: &str = r#"{"sub":"anna","iat":1800000000,"exp":1800000060}"#;

#[test]
fn a_token_of_its_own_is_verified() {
    let keys = keys();
    let player = PlayerName::new("anna@example.org").unwrap();
    let token = keys.sign(&player, NOW, 60);
    let claims = keys.verify(&token, NOW).unwrap();
    assert_eq!(claims.player, player);
    assert_eq!(claims.issued_at_ms, 1_800_000_000_000);
    assert_eq!(claims.expires_at_ms, 1_800_000_060_000);
}

#[test]
fn a_token_made_elsewhere_is_verified() {
    let claims = keys().verify(&hs256(PAYLOAD), NOW).unwrap();
    assert_eq!(claims.player.as_str(), "anna");
    let fraction = r#"{"sub":"anna","iat":1800000000.25,"exp":1.80000006e9,"more":[1]}"#;
    let claims = keys().verify(&hs256(fraction), NOW).unwrap();
    assert_eq!(claims.issued_at_ms, 1_800_000_000_250);
    assert_eq!(claims.expires_at_ms, 1_800_000_060_000);
}

#[test]
fn a_token_is_taken_up_to_the_last_millisecond_before_exp() {
    let token = hs256(PAYLOAD);
    assert!(keys().verify(&token, 1_800_000_059_999).is_ok());
    assert_eq!(
        keys().verify(&token, 1_800_000_060_000),
        Err(TokenError::Expired)
    );
}

#[test]
fn only_hs256_is_taken() {
    for alg in [
        "none", "None", "RS256", "HS512", "HS384", "ES256", "EdDSA", "hs256", "",
    ] {
        let header = format!(r#"{{"alg":"{alg}"}}"#);
        assert_eq!(
            keys().verify(&token(&header, PAYLOAD, KEY), NOW),
            Err(TokenError::WrongAlgorithm),
            "{alg}"
        );
    }
    let unsigned = token(r#"{"alg":"none"}"#, PAYLOAD, KEY);
    let unsigned = &unsigned[..=unsigned.rfind('.').unwrap()];
    assert_eq!(
        keys().verify(unsigned, NOW),
        Err(TokenError::WrongAlgorithm)
    );
    let unsigned = hs256(PAYLOAD);
    let unsigned = &unsigned[..=unsigned.rfind('.').unwrap()];
    assert_eq!(keys().verify(unsigned, NOW), Err(TokenError::BadSignature));
}

#[test]
fn a_token_of_another_key_or_changed_anywhere_is_refused() {
    let foreign = token(r#"{"alg":"HS256"}"#, PAYLOAD, OTHER);
    assert_eq!(keys().verify(&foreign, NOW), Err(TokenError::BadSignature));
    let good = hs256(PAYLOAD);
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(keys().verify(&changed, NOW).is_err(), "byte {at}");
    }
}

#[test]
fn what_is_no_token_is_malformed() {
    let long = format!(
        "{}.{}.{}",
        "a".repeat(2_000),
        "b".repeat(2_000),
        "c".repeat(200)
    );
    let crit = token(r#"{"alg":"HS256","crit":["x"],"x":1}"#, PAYLOAD, KEY);
    let no_alg = token(r#"{"typ":"JWT"}"#, PAYLOAD, KEY);
    let no_json = token(r#"{"alg":"HS256"}"#, "anna", KEY);
    let two = hs256(PAYLOAD);
    let two = &two[..two.rfind('.').unwrap()];
    let four = format!("{}.x", hs256(PAYLOAD));
    let type_of = hs256(r#"{"sub":7,"iat":1800000000,"exp":1800000060}"#);
    let text_exp = hs256(r#"{"sub":"anna","iat":1800000000,"exp":"1800000060"}"#);
    for bad in [
        "", ".", "..", "...", "a.b.c", "ä.ö.ü", &long, &crit, &no_alg, &no_json, two, &four,
        &type_of, &text_exp,
    ] {
        assert_eq!(keys().verify(bad, NOW), Err(TokenError::Malformed), "{bad}");
    }
}

#[test]
fn every_claim_is_judged() {
    for (payload, error) in [
        (
            r#"{"iat":1800000000,"exp":1800000060}"#,
            TokenError::MissingClaim("sub"),
        ),
        (
            r#"{"sub":"anna","exp":1800000060}"#,
            TokenError::MissingClaim("iat"),
        ),
        (
            r#"{"sub":"anna","iat":1800000000}"#,
            TokenError::MissingClaim("exp"),
        ),
        (
            r#"{"sub":"an na","iat":1800000000,"exp":1800000060}"#,
            TokenError::BadPlayer,
        ),
        (
            r#"{"sub":"","iat":1800000000,"exp":1800000060}"#,
            TokenError::BadPlayer,
        ),
        (
            r#"{"sub":"anna","iat":1800000061,"exp":1800000099}"#,
            TokenError::IssuedAhead,
        ),
        (
            r#"{"sub":"anna","iat":1800000000,"nbf":1800000090,"exp":1800000099}"#,
            TokenError::IssuedAhead,
        ),
        (r#"{"sub":"anna","iat":-5,"exp":-1}"#, TokenError::Expired),
        (
            r#"{"sub":"anna","aud":"shop","iat":1800000000,"exp":1800000060}"#,
            TokenError::OtherAudience,
        ),
    ] {
        assert_eq!(keys().verify(&hs256(payload), NOW), Err(error), "{payload}");
    }
    let ahead = r#"{"sub":"anna","iat":1800000060,"exp":1e300}"#;
    assert_eq!(
        keys().verify(&hs256(ahead), NOW).unwrap().expires_at_ms,
        u64::MAX
    );
}

#[test]
fn all_keys_of_a_file_verify_and_the_first_signs() {
    let dir = Dir::new();
    let mut settings = settings();
    settings.auth.token_keys_file =
        dir.file(&format!("# rotated in May\nnew:{KEY}\n\n old : {OTHER}\n"));
    let secrets = secrets(None, Some("0123456789abcdef"));
    let (keys, origin) = Keys::load(&settings, &secrets, None).unwrap();
    assert_eq!(
        origin.token,
        KeySource::File(settings.auth.token_keys_file.clone())
    );
    assert_eq!(origin.admin, KeySource::Environment);
    let player = PlayerName::new("anna").unwrap();
    let header = keys.sign(&player, NOW, 60);
    assert!(keys.verify(&header, NOW).is_ok());
    assert_eq!(
        jsonwebtoken::decode_header(&header).unwrap().kid.as_deref(),
        Some("new")
    );
    for (header, key, expected) in [
        (r#"{"alg":"HS256","kid":"new"}"#, KEY, Ok(())),
        (r#"{"alg":"HS256","kid":"old"}"#, OTHER, Ok(())),
        (r#"{"alg":"HS256"}"#, OTHER, Ok(())),
        (
            r#"{"alg":"HS256","kid":"new"}"#,
            OTHER,
            Err(TokenError::BadSignature),
        ),
        (
            r#"{"alg":"HS256","kid":"gone"}"#,
            KEY,
            Err(TokenError::UnknownKid),
        ),
    ] {
        let verified = keys.verify(&token(header, PAYLOAD, key), NOW).map(|_| ());
        assert_eq!(verified, expected, "{header}");
    }
}

#[test]
fn a_single_key_without_a_name_verifies_whatever_name_a_token_gives() {
    let named = token(r#"{"alg":"HS256","kid":"x"}"#, PAYLOAD, KEY);
    assert!(keys().verify(&named, NOW).is_ok());
}

#[test]
fn admin_keys_are_known_by_name() {
    let dir = Dir::new();
    let mut settings = settings();
    settings.auth.admin_keys_file = dir.file("anna:aaaaaaaaaaaaaaaa\nback-end:bb:bbbbbbbbbbbbbb\n");
    let (keys, _) = Keys::load(&settings, &secrets(Some(KEY), None), None).unwrap();
    assert_eq!(keys.admin("aaaaaaaaaaaaaaaa").as_deref(), Some("anna"));
    assert_eq!(keys.admin("bb:bbbbbbbbbbbbbb").as_deref(), Some("back-end"));
    for wrong in [
        "",
        "aaaaaaaaaaaaaaa",
        "aaaaaaaaaaaaaaaaa",
        "anna:aaaaaaaaaaaaaaaa",
    ] {
        assert_eq!(keys.admin(wrong), None, "{wrong}");
    }
    assert_eq!(
        format!("{keys:?}"),
        "Keys { tokens: [None], admins: [\"anna\", \"back-end\"] }"
    );
}

#[test]
fn a_file_of_keys_that_cannot_be_used_says_where_and_never_what() {
    let dir = Dir::new();
    let mut settings = settings();
    for (text, expected) in [
        (
            format!("a:{KEY}\na:{OTHER}\n"),
            "line 2: another key has the same name",
        ),
        (
            format!("a:{KEY}\nb:{KEY}\n"),
            "line 2: another name has the same key",
        ),
        (format!("{KEY}\n"), "line 1: a key is written as name:key"),
        (
            "a:short".into(),
            "line 1: the token key is 5 bytes long; it must be at least 32",
        ),
        (format!("a b:{KEY}"), "line 1: the name must be"),
        (
            format!("a:{KEY} {OTHER}"),
            "line 1: the token key may only hold visible ASCII",
        ),
        (
            "# nothing\n".into(),
            "holds no token key; write one as name:key",
        ),
        ("x".repeat(70_000), "larger than 64 KiB"),
    ] {
        settings.auth.token_keys_file = dir.file(&text);
        let error = Keys::load(&settings, &secrets(None, None), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains(KEY) && !error.contains('\n'), "{error}");
    }
    let both = Keys::load(&settings, &secrets(Some(KEY), None), None).unwrap_err();
    assert_eq!(
        both.to_string(),
        "both TROVE_TOKEN_KEY and auth.token_keys_file are set; unset one of them"
    );
}

#[test]
fn without_keys_random_ones_are_made_once_and_kept_private() {
    let dir = Dir::new();
    let store = dir.0.join("data");
    let none = secrets(None, None);
    let (first, origin) = Keys::load(&settings(), &none, Some(&store)).unwrap();
    let path = store.join("token.key");
    assert_eq!(origin.token, KeySource::Made(path.clone()));
    assert_eq!(origin.admin, KeySource::Made(store.join("admin.key")));
    let mode = |name: &str| {
        std::fs::metadata(store.join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        (mode("token.key"), mode("admin.key"), mode("")),
        (0o600, 0o600, 0o700)
    );
    assert_eq!(
        std::fs::read_dir(&store).unwrap().count(),
        2,
        "drafts are left"
    );

    let (second, origin) = Keys::load(&settings(), &none, Some(&store)).unwrap();
    assert_eq!(origin.token, KeySource::Kept(path.clone()));
    let token = first.sign(&PlayerName::new("anna").unwrap(), NOW, 60);
    assert!(second.verify(&token, NOW).is_ok());
    let admin = kept_admin_key(&store).unwrap();
    assert_eq!(
        (admin.len(), second.admin(&admin).as_deref()),
        (64, Some("admin"))
    );

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let error = Keys::load(&settings(), &none, Some(&store))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("token.key can be read by others (mode 640); run: chmod 600 "),
        "{error}"
    );
}

#[test]
fn without_keys_and_without_a_store_to_keep_them_nothing_starts() {
    let error = Keys::load(&settings(), &secrets(None, None), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no token key; set TROVE_TOKEN_KEY or auth.token_keys_file"
    );
    let dir = Dir::new();
    let missing = kept_admin_key(&dir.0).unwrap_err().to_string();
    assert!(
        missing.starts_with("there is no admin key; set TROVE_ADMIN_KEY or"),
        "{missing}"
    );
    assert_eq!(
        std::fs::read_dir(&dir.0).unwrap().count(),
        0,
        "asking made a key"
    );
    let short = Keys::load(&settings(), &secrets(Some(""), None), None).unwrap_err();
    assert!(
        short
            .to_string()
            .starts_with("TROVE_TOKEN_KEY: the token key is 0 bytes long")
    );
}

#[test]
fn many_starts_at_once_agree_on_one_key() {
    let dir = Dir::new();
    let path = &dir.0;
    let read = |_| admin(path);
    fn admin(dir: &Path) -> String {
        Keys::load(&Settings::default(), &Secrets::default(), Some(dir)).unwrap();
        kept_admin_key(dir).unwrap()
    }
    let found: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || read(n))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(found.iter().all(|key| *key == found[0]));
}

#[test]
fn secrets_are_picked_out_of_the_environment_and_never_printed() {
    let pairs = [
        ("TROVE_TOKEN_KEY", KEY),
        ("X", "y"),
        ("TROVE_ADMIN_KEY", OTHER),
    ];
    let secrets = Secrets::from_env(pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).into_iter());
    assert_eq!(secrets.token_key.as_deref(), Some(KEY));
    assert_eq!(secrets.admin_key.as_deref(), Some(OTHER));
    assert_eq!(format!("{secrets:?}"), "Secrets");
}
