import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's own mqadmin in one JVM: the words of a command a line in, and all of its output a line out, as JSON. */
public final class Mqadmin {
    private Mqadmin() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream told = new ByteArrayOutputStream();
            PrintStream output = new PrintStream(told, true, "UTF-8");
            System.setOut(output);
            System.setErr(output);
            MQAdminStartup.main0(JSON.parseArray(line).toArray(new String[0]), null);
            answers.println(JSON.toJSONString(told.toString("UTF-8")));
            answers.flush();
        }
        System.exit(0);
    }
}
