"""Texts in many scripts, on which tokenizers are compared."""

TEXTS = (
    "The quick brown fox doesn't jump; WE'LL see what they're up to, I'd say.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Straße, naïve café, Ærøskøbing, İstanbul.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок, їжак.",
    "مرحبا بالعالم، كيف حالك اليوم؟ ٠١٢٣٤٥٦٧٨٩",
    "שלום עולם, מה שלומך היום? בְּרֵאשִׁית",
    "नमस्ते दुनिया, आज आप कैसे हैं? क्षत्रिय १२३",
    "สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง",
    "你好，世界！今天天气怎么样？龜龍鳳",
    "東京は日本の首都です。カタカナとひらがな、ﾊﾝｶｸ。",
    "서울은 대한민국의 수도이다. 안녕하세요 세계!",
    "🫠 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇺🇳 ❤️",
    "e\u0301 n\u0303 a\u0308 Z\u0351\u036b\u0343 é ﬁ ½ ① Ⅷ ²",
    "0 1 12 123 1234 12345 3.14e-10 1,000,000 0x1F 2026-11-29 $5 50%",
    "def f(x):\n\treturn {'a': [1, 22, 333], \"b\": x**2}  # ok\r\n\r\nclass A:\n        pass\n",
    "<html><body class=\"x\">a &amp; b</body></html> a_b__c ```code``` // -> != ==",
    "  two spaces   three    four\u00a0nbsp\u2003em\u200bzero\u3000wide\tab ",
    "\n\n\n\n  \n \n\t\t\n",
    "   ",
    " ",
    "",
    "\x00\x01\x07\x1b[0m\x7f\u0085\u2028\u2029\ufeff",
    "camelCase PascalCase snake_case SCREAMING_CASE iOS ΑΒΓδεζ ǅ ʰ",
    "▁ already ▁▁here",
    "<s> </s> <unk> <0x0A> <|im_start|> [INST]",
)  # fmt: skip
TEXT = "\n".join(TEXTS)
