"""The pages as a web site: rendered Markdown, whole diffs, sources; static, with nothing from elsewhere."""
