use super::*;

const NONE: [(&str, &str); 0] = [];

fn variables<const N: usize>(pairs: [(&str, &str); N]) -> impl Iterator<Item = (String, String)> {
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
}

fn with_file(text: &str) -> Result<Settings, SettingsError> {
    let path = std::env::temp_dir().join(format!(
        "trove-settings-{:016x}.toml",
        rand::random::<u64>()
    ));
    std::fs::write(&path, text).unwrap();
    let settings = Settings::load(Some(&path), variables(NONE), Overrides::default());
    std::fs::remove_file(path).unwrap();
    settings
}

fn with_variable(name: &str, value: &str) -> Result<Settings, SettingsError> {
    Settings::load(None, variables([(name, value)]), Overrides::default())
}

fn error(result: Result<Settings, SettingsError>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message:?} is more than one line");
    message
}

#[test]
fn the_printed_defaults_are_the_defaults() {
    let printed = with_file(DEFAULTS).unwrap();
    assert_eq!(printed, Settings::default());
    assert_eq!(
        printed,
        Settings::load(None, variables(NONE), Overrides::default()).unwrap()
    );
    assert_eq!(
        (printed.store.url.as_str(), printed.store.dir()),
        ("embedded:./trove-data", Some(Path::new("./trove-data")))
    );
    let game = crate::game::rules::Limits::default();
    assert_eq!(printed.game.pending_finds_max, game.pending_finds_max);
    assert_eq!(printed.game.find_id_ttl_ms, game.find_id_ttl_ms);
}

#[test]
fn every_number_has_a_range_that_holds_its_default() {
    let table: toml::Table = DEFAULTS.parse().unwrap();
    for (section, keys) in &table {
        for (key, default) in keys.as_table().unwrap() {
            let key = format!("{section}.{key}");
            limits::value(&key, default).unwrap();
            if default.is_integer() {
                assert!(
                    limits::RANGES
                        .iter()
                        .chain(&shim::RANGES)
                        .chain(&sla::RANGES)
                        .chain(&telemetry::RANGES)
                        .any(|(name, ..)| *name == key),
                    "{key} has no range"
                );
            }
        }
    }
}

#[test]
fn flags_stand_above_the_environment_and_that_above_the_file() {
    let path =
        std::env::temp_dir().join(format!("trove-layers-{:016x}.toml", rand::random::<u64>()));
    std::fs::write(
        &path,
        "[server]\nlisten = \"127.0.0.1:1\"\nops_listen = \"127.0.0.1:2\"\ndrain_ms = 3\n",
    )
    .unwrap();
    let env = [
        ("TROVE_SERVER__LISTEN", "127.0.0.1:4"),
        ("TROVE_SERVER__OPS_LISTEN", "127.0.0.1:5"),
        ("HOME", "/x"),
    ];
    let flags = Overrides {
        listen: Some("127.0.0.1:6".into()),
        ..Overrides::default()
    };
    let settings = Settings::load(Some(&path), variables(env), flags).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(settings.server.listen.port(), 6);
    assert_eq!(settings.server.ops_listen.port(), 5);
    assert_eq!(settings.server.drain_ms, 3);
    assert_eq!(settings.server.notice_ms, 0);
}

#[test]
fn a_variable_is_read_as_its_setting_s_kind() {
    assert_eq!(
        with_variable("TROVE_POLL__JITTER", "0")
            .unwrap()
            .poll
            .jitter,
        0.0
    );
    assert_eq!(
        with_variable("TROVE_POLL__INTERVAL_MS", "2_000")
            .unwrap()
            .poll
            .interval_ms,
        2_000
    );
    let origins = with_variable(
        "TROVE_CORS__ALLOWED_ORIGINS",
        "https://a.example, http://b:81",
    )
    .unwrap();
    assert_eq!(
        origins.cors.allowed_origins,
        ["https://a.example", "http://b:81"]
    );
    assert!(
        with_variable("TROVE_CORS__ALLOWED_ORIGINS", "")
            .unwrap()
            .cors
            .allowed_origins
            .is_empty()
    );
    assert_eq!(
        error(with_variable("TROVE_POLL__INTERVAL_MS", "soon")),
        "TROVE_POLL__INTERVAL_MS: poll.interval_ms must be a whole number"
    );
}

#[test]
fn an_unknown_key_is_an_error_that_names_it_and_a_near_one() {
    for (text, key, near) in [
        (
            "[poll]\nintervall_ms = 5",
            "poll.intervall_ms",
            "poll.interval_ms",
        ),
        (
            "[server]\nheader_ms = 5",
            "server.header_ms",
            "limits.header_ms",
        ),
        (
            "[pol]\ninterval_ms = 5",
            "pol.interval_ms",
            "poll.interval_ms",
        ),
        ("listen = \"127.0.0.1:1\"", "listen", "server.listen"),
    ] {
        let message = error(with_file(text));
        assert!(
            message.contains(&format!("no setting {key}, perhaps {near} is meant")),
            "{message}"
        );
    }
    let message = error(with_file("[shim]\nzzz = 1"));
    assert!(message.contains("no setting shim.zzz;"), "{message}");
    for name in [
        "TROVE_SERVER_LISTEN",
        "TROVE_server__listen",
        "TROVE_SERVER__LISTENS",
    ] {
        let message = error(with_variable(name, "127.0.0.1:1"));
        assert!(
            message.starts_with(&format!("{name}: there is no setting")),
            "{message}"
        );
        assert!(
            message.contains("perhaps server.listen is meant"),
            "{message}"
        );
    }
}

#[test]
fn secrets_and_what_kubernetes_sets_are_no_settings() {
    let env = [
        ("TROVE_TOKEN_KEY", "k"),
        ("TROVE_ADMIN_KEY", "k"),
        ("TROVE_PORT", "tcp://10.0.0.1:8080"),
        ("TROVE_SERVICE_HOST", "10.0.0.1"),
        ("TROVE_SERVICE_PORT_HTTP", "8080"),
        ("TROVE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("TROVE_OPS_PORT_9090_TCP", "tcp://10.0.0.1:9090"),
    ];
    let settings = Settings::load(None, variables(env), Overrides::default()).unwrap();
    assert_eq!(settings, Settings::default());
    assert!(with_variable("TROVE_PORTS", "1").is_err());
}

#[test]
fn a_value_of_the_wrong_kind_or_out_of_range_is_refused_by_name() {
    for (text, expected) in [
        (
            "[poll]\ninterval_ms = \"5\"",
            "poll.interval_ms must be a whole number",
        ),
        (
            "[poll]\ninterval_ms = 99",
            "poll.interval_ms is 99; it must be 100 to 3600000",
        ),
        (
            "[poll]\njitter = 0.6",
            "poll.jitter is 0.6; it must be 0 to 0.5",
        ),
        (
            "[poll]\njitter = nan",
            "poll.jitter is NaN; it must be 0 to 0.5",
        ),
        (
            "[server]\ndrain_ms = -1",
            "server.drain_ms is -1; it must be 0 to 600000",
        ),
        (
            "[server]\nlisten = \"here\"",
            "server.listen is \"here\"; it must be an address",
        ),
        (
            "[server]\ninstance_id = \"a b\"",
            "server.instance_id is \"a b\"; it must be up to 64",
        ),
        (
            "[log]\nlevel = \"loud\"",
            "log.level is \"loud\"; it must be one of error,",
        ),
        (
            "[cors]\nallowed_origins = [\"https://a/b\"]",
            "cors.allowed_origins holds",
        ),
        (
            "[cors]\nallowed_origins = [1]",
            "cors.allowed_origins must be a list of texts",
        ),
        ("poll = 1", "poll is a section"),
        (
            "[store]\nurl = \"embedded:\"",
            "store.url names no directory",
        ),
        (
            "[store]\nurl = \"./data\"",
            "store.url must be embedded:DIR, redis://",
        ),
    ] {
        let message = error(with_file(text));
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn another_kind_of_store_is_refused_without_repeating_its_password() {
    let message = error(with_variable("TROVE_STORE__URL", "mysql://:secret@host"));
    assert_eq!(
        message,
        "TROVE_STORE__URL: store.url is a mysql address; this version knows embedded:DIR, redis://, redis+sentinel:// and redis+cluster://"
    );
    let message = error(with_variable("TROVE_STORE__URL", "redis://:secret@"));
    assert!(!message.contains("secret"), "{message}");
}

#[test]
fn a_store_on_redis_is_shown_without_its_password() {
    for (url, shown) in [
        ("redis://host", "redis://host"),
        ("redis://me:se@cret@host:7000/1", "redis://host:7000/1"),
        (
            "redis+sentinel://a:1,b:2/main",
            "redis+sentinel://a:1,b:2/main",
        ),
    ] {
        let mut store = Settings::default().store;
        store.url = url.into();
        assert_eq!(store.shown(), shown);
        assert_eq!(store.place(), StorePlace::Redis(url));
        assert_eq!(store.dir(), None);
    }
}

#[test]
fn settings_that_contradict_each_other_are_both_named() {
    for (text, first, second) in [
        (
            "[poll]\ncredit_wait_ms = 2000",
            "poll.credit_wait_ms",
            "poll.interval_ms",
        ),
        (
            "[limits]\ninline_json_bytes_max = 70000",
            "limits.inline_json_bytes_max",
            "limits.body_bytes_max",
        ),
        (
            "[limits]\nhunt_bytes_max = 2048",
            "limits.body_bytes_max",
            "limits.hunt_bytes_max",
        ),
        (
            "[limits]\nbulk_bytes_max = 2048",
            "limits.body_bytes_max",
            "limits.bulk_bytes_max",
        ),
        (
            "[limits]\nidle_ms = 500",
            "limits.header_ms",
            "limits.idle_ms",
        ),
        (
            "[server]\nops_listen = \"127.0.0.1:8080\"",
            "server.ops_listen",
            "server.listen",
        ),
    ] {
        let message = error(with_file(text));
        assert!(
            message.contains(first) && message.contains(second),
            "{message}"
        );
    }
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_its_line() {
    let message = error(with_file("[poll]\ninterval_ms = = 5\n"));
    assert!(message.contains(".toml, line 2: "), "{message}");
    let missing = Settings::load(
        Some(Path::new("/no/such")),
        variables(NONE),
        Overrides::default(),
    );
    assert!(error(missing).starts_with("cannot read the settings file /no/such: "));
}

#[test]
fn an_instance_has_a_name_of_its_own() {
    let mut settings = Settings::default();
    assert!(limits::is_instance_id(&settings.instance_id()));
    settings.server.instance_id = "blue-1".into();
    assert_eq!(settings.instance_id(), "blue-1");
}

#[test]
fn a_promise_is_one_that_the_store_can_keep() {
    for (text, expected) in [
        (
            "[store]\ndurability = \"safe\"",
            "store.durability is \"safe\"; it must be one of async, replicated, fsync",
        ),
        (
            "[store]\ndurability = \"replicated\"",
            "store.durability (replicated) must not be set, as there are no replicas, with store.url (embedded:",
        ),
        (
            "[store]\nurl = \"redis://h\"\ndurability_wait_ms = 6000",
            "store.durability_wait_ms (6000) must not be above store.find_wait_ms (5000)",
        ),
        ("[store]\nreplicas_min = 0", "it must be 1 to 16"),
    ] {
        let message = error(with_file(text));
        assert!(message.contains(expected), "{message}");
    }
    let text =
        "[store]\nurl = \"redis+cluster://a,b:1\"\ndurability = \"replicated\"\nreplicas_min = 2";
    assert_eq!(with_file(text).unwrap().store.replicas_min, 2);
}

#[test]
fn a_find_waits_longer_than_one_answer_of_a_server_may_take() {
    let with = |url: &str, response_timeout_ms: u64| {
        with_file(&format!(
            "[store]\nurl = \"{url}\"\nfind_wait_ms = 1000\ndurability_wait_ms = 1000\nresponse_timeout_ms = {response_timeout_ms}"
        ))
    };
    for url in [
        "redis://h",
        "redis+sentinel://h:1/m",
        "redis+cluster://a,b:1",
    ] {
        let message = error(with(url, 1_000));
        assert!(
            message.contains(
                "store.response_timeout_ms (1000) must not be as long as or above store.find_wait_ms (1000)"
            ),
            "{message}"
        );
        assert!(with(url, 999).is_ok());
    }
    // There is no server to wait for.
    assert!(with("embedded:d", 1_000).is_ok());
}

#[test]
fn the_numbers_of_objectives_and_of_buckets_are_bounded() {
    let objectives = |count: usize| {
        let one = |n| format!("o{n}:poll:99:1000:0.005");
        let all: Vec<String> = (0..count).map(one).collect();
        with_variable("TROVE_SLA__OBJECTIVES", &all.join(","))
    };
    assert_eq!(objectives(16).unwrap().sla.objectives.len(), 16);
    assert!(error(objectives(17)).contains("at most 16"));
    assert!(objectives(0).unwrap().sla.objectives.is_empty());
    let buckets = |count: usize| {
        let all: Vec<String> = (1..=count).map(|n| (n * 100).to_string()).collect();
        with_variable("TROVE_SLA__BUCKETS_MS", &all.join(","))
    };
    assert_eq!(buckets(40).unwrap().sla.buckets_ms.len(), 40);
    assert!(error(buckets(41)).contains("1 to 40 boundaries"));
}

#[test]
fn an_objective_needs_a_boundary_where_it_cuts() {
    let message = error(with_file(
        "[sla]\nbuckets_ms = [1, 1000]\n[[sla.objectives]]\nname = \"finds\"\nroute = \"find\"\npercentile = 99\nlatency_ms = 1000\nerror_ratio = 0.01\nfailure_ms = 3000\n",
    ));
    assert!(message.contains("failure_ms 3000 of finds"), "{message}");
    assert!(message.contains("sla.buckets_ms (1, 1000)"), "{message}");
}
