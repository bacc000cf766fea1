package org.apache.kafka.controller;

import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/** JSON without spaces; objects keep the order of their names. */
public final class Json {
    private Json() { }

    /** An object of alternating names and values. */
    public static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            object.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return object;
    }

    public static String text(Object value) {
        if (value instanceof Map<?, ?> object) {
            return object.entrySet().stream().map(entry -> text(entry.getKey()) + ":" + text(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> list) {
            return list.stream().map(Json::text).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof int[] numbers) {
            return text(Arrays.stream(numbers).boxed().toList());
        }
        return value instanceof String || value instanceof Enum<?> ? "\"" + value + "\"" : String.valueOf(value);
    }
}
