// Filters as people write them: year>=2020, lang=en. JSON is taken as it is.

const OPERATORS = { "=": "$eq", "!=": "$ne", ">=": "$gte", "<=": "$lte", ">": "$gt", "<": "$lt" };
const CONDITION = /^\s*([^\s=!<>]+)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*$/;

export function readFilter(text) {
  if (!text.trim()) return null;
  if (text.trim().startsWith("{")) return JSON.parse(text);
  const parts = text.split(",").filter((part) => part.trim()).map((part) => {
    const match = CONDITION.exec(part);
    if (!match) throw new Error(`write FIELD=VALUE, such as year>=2020, not ${part.trim()}`);
    const [, field, operator, written] = match;
    return { [field]: { [OPERATORS[operator]]: value(written) } };
  });
  return parts.length === 1 ? parts[0] : { $and: parts };
}

function value(written) {
  try {
    const read = JSON.parse(written);
    return typeof read === "object" && read !== null ? written : read;
  } catch {
    return written;
  }
}
