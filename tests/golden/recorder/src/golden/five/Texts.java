package golden.five;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import golden.Golden;
import java.nio.charset.StandardCharsets;

/** How fastjson itself escapes texts and writes doubles. */
final class Texts {
    private final Golden golden;

    Texts(Golden golden) {
        this.golden = golden;
    }

    void record() {
        StringBuilder all = new StringBuilder();
        for (int c = 0; c < 0x180; c++) {
            all.append((char) c);
        }
        for (int c = 0x2000; c < 0x2040; c++) {
            all.append((char) c);
        }
        all.append("\u20ac\ufeff\ufffd\uffff\ud83d\ude00");
        String text = all.toString();
        golden.add("fastjson", "text", JSON.toJSONString(text).getBytes(StandardCharsets.UTF_8), "value", text);
        golden.add("fastjson-standard", "text-standard", JSON.toJSONString(text, SerializerFeature.BrowserCompatible,
            SerializerFeature.QuoteFieldNames, SerializerFeature.MapSortField).getBytes(StandardCharsets.UTF_8), "value", text);
        double[] numbers = {0, -0.0, 1, 0.1, 1e-3, 9.99e-4, 1.5e-10, 9999999, 1e7, 1.2345678e7, 123456789012345680.0, 1e16, 1e21,
            1.7976931348623157e308, 2.2250738585072014e-308, -1234.5678, 100, 3.4e-5};
        for (double number : numbers) {
            golden.fact("double", "double " + number, "bits", Long.toHexString(Double.doubleToRawLongBits(number)),
                "text", JSON.toJSONString(number));
        }
    }
}
