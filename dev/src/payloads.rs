//! Payloads that are hard on readers.

/// Payloads of one partition each: its name, what the reference calls it, and the JSON texts.
pub fn payloads() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let forty = "1234567890".repeat(4);
    let one = |text: &str| vec![text.to_owned()];
    let nested = |depth| vec![format!("{}1{}", "[".repeat(depth), "]".repeat(depth))];
    vec![
        ("null", "`null`", one("null")),
        ("empty-string", "the empty string", one("\"\"")),
        ("empty", "`{}`", one("{}")),
        (
            "escapes",
            "every short escape, `\\u001f`, a pair for 🦀",
            one(r#""\"\\\/\b\f\n\r\t\u001f\u00e9 \ud83e\udd80 é 🦀""#),
        ),
        ("nul", "`\"\\u0000\"`", one(r#""a\u0000b""#)),
        (
            "line-breaks",
            "raw line breaks between tokens",
            one("{\r\n \"a\" :\n[1,\r2 ]}"),
        ),
        (
            "half-pair",
            "half a surrogate pair, `\"\\ud800\"`",
            one(r#""\ud800""#),
        ),
        (
            "turned-pair",
            "a pair the wrong way round",
            one(r#""\udd80\ud83e""#),
        ),
        ("forty-digits", "an integer of 40 digits", one(&forty)),
        (
            "fraction",
            "a fraction of 40 digits",
            one(&format!("0.{forty}")),
        ),
        ("exponent", "`1e999`", one("1e999")),
        ("repeated-key", "a key given twice", one(r#"{"a":1,"a":2}"#)),
        ("depth-100", "100 arrays deep", nested(100)),
        ("depth-5000", "5,000 arrays deep", nested(5_000)),
        (
            "eight-mebibytes",
            "a string of 8 MiB",
            vec![format!("\"{}\"", "lake".repeat(2 << 20))],
        ),
        (
            "mixed-fields",
            "one field as number, text, object, and absent",
            [r#"{"a":1}"#, r#"{"a":"x"}"#, r#"{"a":{"b":[]}}"#, "{}"]
                .map(str::to_owned)
                .to_vec(),
        ),
        (
            "mixed",
            "number, text, object, array, boolean and `null` in one column",
            ["1", "\"x\"", r#"{"a":1}"#, "[1]", "true", "null"]
                .map(str::to_owned)
                .to_vec(),
        ),
    ]
}

/// What a payload is in a line.
pub fn in_a_line(payload: &str) -> String {
    payload.replace(['\r', '\n'], " ")
}
